# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Lets all ranks export a model to one folder.

A SavedModel has several files that belong together: another rank's hold the same values, but in
another order. Who reads while ranks write must not get some of each. So the first rank that is done
puts its folder there, in one step, and the others, which make the same call, leave it.
"""

import collections
import contextlib
import fcntl
import os
import pathlib
import shutil
import time
from collections.abc import Iterator
from typing import Any

import keras

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.base.exchange_names import exchange_names
from tfdear.integrations.keras import shared_paths

SEAMS = seams.Seams()

_MARK = ".tfdear_export"  # In an export: the job, and which of its exports to this folder it is.
_ATTEMPTS = 5
_LOCK_SECONDS = 10.0
_PAUSE_SECONDS = 0.01

# By job and folder.
_exports: collections.Counter[tuple[str, str]] = collections.Counter()


@SEAMS.wrap(_keras_private.EXPORT_SAVED_MODEL)
def _export_and_rename(
    save: seams.Original, model: keras.Model, filepath: Any, *args: Any, **kwargs: Any
) -> object:
    if not shared_paths.is_shared(model, filepath):
        return save(model, filepath, *args, **kwargs)
    strategy = model.distribute_strategy
    target = pathlib.Path(os.path.abspath(filepath))
    own = target.with_name(f".rank{strategy.rank}.new.{target.name}")
    shutil.rmtree(own, ignore_errors=True)
    result = save(model, str(own), *args, **kwargs)
    key = (strategy._job.number, str(target))
    _exports[key] += 1
    (own / _MARK).write_text(f"{strategy._job.number} {_exports[key]}")
    with _alone_in(target.parent):
        for attempt in range(_ATTEMPTS):
            if _number(target, strategy._job.number) >= _exports[key]:
                break
            try:
                _replace(target, own)
                break
            except OSError:  # Another rank was faster, on a file system that cannot lock.
                if attempt == _ATTEMPTS - 1:
                    raise
    shutil.rmtree(own, ignore_errors=True)
    return result


def _number(target: pathlib.Path, job: str) -> int:
    """Which of a job's exports to it a folder is; 0: it is none."""
    with contextlib.suppress(OSError, ValueError):
        of_job, number = (target / _MARK).read_text().split()
        if of_job == job:
            return int(number)
    return 0


def _replace(target: pathlib.Path, own: pathlib.Path) -> None:
    if exchange_names(own, target):
        return
    previous = own.with_name(own.name.replace(".new.", ".old.", 1))
    shutil.rmtree(previous, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        target.rename(previous)
    own.rename(target)
    shutil.rmtree(previous, ignore_errors=True)


@contextlib.contextmanager
def _alone_in(folder: pathlib.Path) -> Iterator[None]:
    """Within it, no other rank is, on file systems that can lock."""
    descriptor = os.open(folder, os.O_RDONLY)
    end = time.monotonic() + _LOCK_SECONDS
    try:
        while time.monotonic() < end:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_PAUSE_SECONDS)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)
