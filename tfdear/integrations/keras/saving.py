# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Lets all ranks write to one path: Keras 3's callbacks know no chief.

Logs are written by rank 0, or by every rank in a folder of its own.

All ranks hold the same values, so a file that several of them write is the same whichever comes
last, provided that no reader sees half of it: each rank writes a file of its own beside the target
and renames it.
"""

import contextlib
import contextvars
import errno
import os
import pathlib
import shutil
import time
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.data import training_position
from tfdear.integrations.keras import lookup, residuals, shared_paths

# Ranks that work in one folder interrupt each other with every file that one of them removes. What
# is missing for longer than this is really missing.
_INTERRUPTED_SECONDS = 10.0
_PAUSE_SECONDS = 0.002

# Keras's callbacks that write logs, and where they keep the path.
_LOGS = {keras.callbacks.TensorBoard: "log_dir", keras.callbacks.CSVLogger: "filename"}

_Path: TypeAlias = str | os.PathLike[str]

SEAMS = seams.Seams()

# The callback that saves now.
_backing_up: contextvars.ContextVar[keras.callbacks.BackupAndRestore | None] = (
    contextvars.ContextVar("backing_up", default=None)
)

# Folders and sharded weights are written in place: only single files are renamed.


@SEAMS.wrap(_keras_private.SAVE_MODEL)
def _save_model(
    save: seams.Original,
    model: keras.Model,
    filepath: _Path,
    weights_format: str = "h5",
    zipped: bool = True,
) -> object:
    return _save_and_rename(save, zipped, model, filepath, weights_format, zipped)


@SEAMS.wrap(_keras_private.SAVE_WEIGHTS)
def _save_weights(
    save: seams.Original,
    model: keras.Model,
    filepath: _Path,
    max_shard_size: float | None = None,
    *args: Any,
    **kwargs: Any,
) -> object:
    return _save_and_rename(
        save, not max_shard_size, model, filepath, max_shard_size, *args, **kwargs
    )


@SEAMS.wrap(_keras_private.SAVE_HDF5)
def _save_hdf5(
    save: seams.Original, model: keras.Model, filepath: _Path, *args: Any, **kwargs: Any
) -> object:
    return _save_and_rename(save, True, model, filepath, *args, **kwargs)


def _save_and_rename(
    save: seams.Original,
    one_file: bool,
    model: keras.Model,
    filepath: _Path,
    *args: Any,
    **kwargs: Any,
) -> object:
    if not shared_paths.is_shared(model, filepath) or not one_file:
        if one_file and shared_paths.is_path(filepath):  # Of a file system without local names.
            residuals.write(model, filepath)
        return save(model, filepath, *args, **kwargs)
    target = pathlib.Path(filepath)
    own = target.with_name(f".rank{model.distribute_strategy.rank}.{target.name}")
    try:
        result = save(model, str(own), *args, **kwargs)
        if (callback := _backing_up.get()) is not None:
            training_position.write(own, callback)
        residuals.write(model, target)
        os.replace(own, target)
    except BaseException:
        own.unlink(missing_ok=True)  # Half a file, beside others of its name.
        raise
    return result


@SEAMS.wrap(_keras_private.LOAD_MODEL, _keras_private.LOAD_WEIGHTS)
def _load_with_residual(load: seams.Original, *args: Any, **kwargs: Any) -> object:
    # Restores what compression held back when the file was saved.
    loaded = load(*args, **kwargs)
    # `load_model(filepath)` or `load_weights_only(model, filepath)`.
    given = [*args, kwargs.get("model"), kwargs.get("filepath")]
    model = next((m for m in [loaded, *given] if isinstance(m, keras.Model)), None)
    filepath = next((p for p in given if isinstance(p, (str, os.PathLike))), None)
    if model is not None and filepath is not None:
        residuals.read(model, filepath)
    return loaded


@SEAMS.wrap(_keras_private.SET_MODEL)
def _set_model(
    set_model: seams.Original, callbacks: keras.callbacks.CallbackList, model: keras.Model
) -> object:
    """Removes the callbacks that write logs from all ranks except rank 0: logs are the same.

    With `log_per_rank` all ranks keep them, each with a folder of its own. Derived classes stay on
    all ranks: they may do what all ranks must do, and choose their own paths.
    """
    if (strategy := lookup.dear_strategy_of(model)) is not None:
        per_rank = strategy._job.options.log_per_rank
        for callback in list(callbacks.callbacks):
            attribute = _LOGS.get(type(callback))
            if attribute is None:
                continue
            if per_rank:
                path = os.fspath(getattr(callback, attribute))
                setattr(callback, attribute, _own_path(path, attribute, strategy.rank))
            elif strategy.rank > 0:
                callbacks.callbacks.remove(callback)
    return set_model(callbacks, model)


def _own_path(path: str, attribute: str, rank: int) -> str:
    name = f"rank_{rank}"
    folder, file = (path, "") if attribute == "log_dir" else os.path.split(path)
    if os.path.basename(folder.rstrip("/")) != name:  # Of a second `fit` with the same callback.
        folder = os.path.join(folder, name)
    tf.io.gfile.makedirs(folder)
    return os.path.join(folder, file) if file else folder


@SEAMS.wrap(_keras_private.MAKE_FOLDERS)
def _make_folders(makedirs: seams.Original, path: _Path) -> None:
    # Callbacks of all ranks find at the same time that a folder is missing, and create it.
    with contextlib.suppress(FileExistsError):
        makedirs(path)


@SEAMS.wrap(_keras_private.BACK_UP)
def _back_up(save: seams.Original, callback: keras.callbacks.BackupAndRestore) -> None:
    # Training may be killed at any moment: the weights' file itself says where training was, and
    # the other file is never half written.
    if not shared_paths.is_shared(callback.model, callback.backup_dir):
        return save(callback)
    target = pathlib.Path(callback._training_metadata_path)
    own = target.with_name(f".rank{callback.model.distribute_strategy.rank}.{target.name}")

    # Together: between the two another rank may remove the folder, and with it this rank's file.
    def save_and_replace(callback: keras.callbacks.BackupAndRestore) -> None:
        save(callback)
        os.replace(own, target)

    backing_up = _backing_up.set(callback)
    callback._training_metadata_path = str(own)
    try:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(target, own)  # For `double_checkpoint`.
        _retry_on_removal(save_and_replace, callback)
    finally:
        callback._training_metadata_path = str(target)
        _backing_up.reset(backing_up)
    return None


@SEAMS.wrap(_keras_private.REMOVE_BACKUP)
def _retry_on_removal(
    method: seams.Original, callback: keras.callbacks.Callback, *args: Any, **kwargs: Any
) -> object:
    # Every rank backs up into one folder and removes it when training ends, while another may still
    # be writing its last backup.
    end = time.monotonic() + _INTERRUPTED_SECONDS
    while True:
        try:
            return method(callback, *args, **kwargs)
        except OSError as error:
            # HDF5 gives no number when a file is removed just after it was created.
            vanished = error.errno is None and "retrieve stat info" in str(error)
            interrupted = vanished or error.errno in (errno.ENOENT, errno.ENOTEMPTY)
            if not interrupted or time.monotonic() > end:
                raise
        time.sleep(_PAUSE_SECONDS)
