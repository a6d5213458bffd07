# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Lets all ranks save to one path: Keras 3's callbacks know no chief.

All ranks hold the same values, so a file that several of them write is the same whoever was last,
provided that nobody ever sees half of it: each rank writes a file of its own beside the target and
renames it.
"""

import contextlib
import errno
import functools
import os
import pathlib
import shutil

import keras

from tfdear import residual_files

_ATTEMPTS = 5
# A folder may have several files of every rank, and each that another removes is an interruption.
_MOST_INTERRUPTIONS = 10000

_installed = False


def install() -> None:
    """Wraps Keras's functions that write files. Does nothing when called again."""
    global _installed
    if _installed or keras.backend.backend() != "tensorflow":
        return
    _installed = True
    from keras.src.callbacks.backup_and_restore import BackupAndRestore
    from keras.src.legacy.saving import legacy_h5_format
    from keras.src.saving import saving_lib

    # Only what writes a single file: folders and sharded weights are written in place.
    for module, name, one_file in (
        (saving_lib, "save_model", lambda *_, zipped=True, **__: zipped),
        (saving_lib, "save_weights_only", lambda max_shard_size=None, *_, **__: not max_shard_size),
        (legacy_h5_format, "save_model_to_hdf5", lambda *_, **__: True),
    ):
        setattr(module, name, _renamed_into_place(getattr(module, name), one_file))
    for name in ("load_model", "load_weights_only"):
        setattr(saving_lib, name, _with_residual(getattr(saving_lib, name)))
    from keras.src import export

    export.export_saved_model = _exported_into_place(export.export_saved_model)
    from keras.src.utils import file_utils

    file_utils.makedirs = _also_if_made(file_utils.makedirs)
    # Every rank backs up into one folder and removes it when training ends, while another may still
    # be writing its last backup.
    for name in ("_save_model", "on_train_end"):
        setattr(BackupAndRestore, name, _again_if_removed(getattr(BackupAndRestore, name)))


def _renamed_into_place(save, one_file):
    @functools.wraps(save)
    def save_and_rename(model, filepath, *args, **kwargs):
        if not _is_shared_path(model, filepath) or not one_file(*args, **kwargs):
            return save(model, filepath, *args, **kwargs)
        target = pathlib.Path(filepath)
        own = target.with_name(f".rank{model.distribute_strategy.rank}.{target.name}")
        result = save(model, str(own), *args, **kwargs)
        residual_files.write(model, target)
        os.replace(own, target)
        return result

    return save_and_rename


def _with_residual(load):
    """Takes up what compression held back when the file was saved."""

    @functools.wraps(load)
    def load_both(*args, **kwargs):
        loaded = load(*args, **kwargs)
        # `load_model(filepath)` or `load_weights_only(model, filepath)`.
        given = [*args, kwargs.get("model"), kwargs.get("filepath")]
        model = next((m for m in [loaded, *given] if isinstance(m, keras.Model)), None)
        filepath = next((p for p in given if isinstance(p, (str, os.PathLike))), None)
        if model is not None and filepath is not None and _is_shared_path(model, filepath):
            residual_files.read(model, pathlib.Path(filepath))
        return loaded

    return load_both


def _exported_into_place(save):
    """As `_renamed_into_place`, for the folder of a SavedModel."""

    @functools.wraps(save)
    def save_and_swap(model, filepath, *args, **kwargs):
        if not _is_shared_path(model, filepath):
            return save(model, filepath, *args, **kwargs)
        target = pathlib.Path(filepath)
        own, previous = (
            target.with_name(f".rank{model.distribute_strategy.rank}.{role}.{target.name}")
            for role in ("new", "old")
        )
        shutil.rmtree(own, ignore_errors=True)
        result = save(model, str(own), *args, **kwargs)
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                target.rename(previous)  # Another rank's, or an older one.
            shutil.rmtree(previous, ignore_errors=True)
            try:
                own.rename(target)
                return result
            except OSError:  # Another rank was faster: its export is the same.
                continue
        shutil.rmtree(own, ignore_errors=True)
        return result

    return save_and_swap


def _is_shared_path(model, filepath) -> bool:
    strategy = getattr(model, "distribute_strategy", None)
    is_dear = getattr(getattr(strategy, "extended", None), "is_distributed_dear", False)
    return is_dear and isinstance(filepath, (str, os.PathLike)) and "://" not in str(filepath)


def _also_if_made(makedirs):
    """Callbacks of all ranks find at the same time that a folder is missing, and make it."""

    @functools.wraps(makedirs)
    def make(path):
        with contextlib.suppress(FileExistsError):
            makedirs(path)

    return make


def _again_if_removed(method):
    """Calls again after another rank removed, or wrote, a file in the same folder meanwhile."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        for _ in range(_MOST_INTERRUPTIONS):
            try:
                return method(self, *args, **kwargs)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
        return method(self, *args, **kwargs)

    return call
