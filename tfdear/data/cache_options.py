# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the arguments of a cache may be, and what they mean."""

import contextlib
import math
import operator
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
import tensorflow as tf

from tfdear.base import memory as memory_module
from tfdear.base.checks import is_number
from tfdear.base.sizes import bytes_of
from tfdear.data import memory_bound
from tfdear.job import job as job_module

# What the engine counts with.
_MOST = np.iinfo(np.int64).max
_CHOICES = {
    "placement": ("sharded", "replicated"),
    "disk_holds": ("raw", "prepared"),
    "on_error": ("raise", "skip"),
    "order": ("global", "node"),
}


def check_choices(**given: str) -> None:
    """Raises a ValueError for an argument that is none of those which there are."""
    for name, value in given.items():
        if value not in _CHOICES[name]:
            raise ValueError(f"`{name}` must be one of {_CHOICES[name]}. Received: {value!r}")


def check_rate(max_rate: float | None) -> None:
    """Raises a ValueError for what is no limit of bytes per second."""
    if max_rate is not None and not (is_number(max_rate) and 0 < max_rate < math.inf):
        raise ValueError(
            "`max_rate` must be a positive number of bytes per second, or None. Received: "
            f"{max_rate!r}"
        )


def check_disk(directory: object, disk: object, disk_holds: str) -> None:
    """Raises a ValueError where something is said about files, but not where they are."""
    if directory is None and (disk is not None or disk_holds != "raw"):
        raise ValueError(
            "`disk` and `disk_holds` say what is kept in files, which needs a `directory`. "
            f"Received: directory=None, disk={disk!r}, disk_holds={disk_holds!r}"
        )


def job_of(strategy: tf.distribute.Strategy) -> job_module.Job:
    """The job of a strategy; raises a ValueError if it has none."""
    job = getattr(strategy, "_job", None)
    if not isinstance(job, job_module.Job):
        raise ValueError(
            "`strategy` must be a tfdear.DearStrategy, or None. Received: "
            f"{type(strategy).__name__}"
        )
    job.check_open()
    return job


def memory_bytes_of(memory: int | str | None) -> int:
    """Bytes for the examples in the memory of a node."""
    if memory is None:
        # Two caches, such as one for validation, do not take all of it together.
        left = memory_module.available_bytes() - memory_bound.promised_bytes()
        return max(0, left) // 2
    return bytes_of(memory, "memory")


def whole(name: str, value: object, least: int | None = None) -> int:
    """A whole number that was given, of Python or of numpy; raises a ValueError for others."""
    number: int | None = None
    if not isinstance(value, (bool, np.bool_)) and isinstance(value, SupportsIndex):
        with contextlib.suppress(TypeError, AttributeError):  # Of arrays and tensors, some are one.
            number = operator.index(value)
    if number is not None and (least is None or least <= number <= _MOST):
        return number
    bound = "" if least is None else f" from {least}, of 64 bits"
    raise ValueError(f"`{name}` must be a whole number{bound}. Received: {value!r}")


def check_version(version: object) -> None:
    """Raises a ValueError for what is no text."""
    if not isinstance(version, str):
        raise ValueError(f'`version` must be text, such as "2". Received: {version!r}')


def check_source(source: object) -> None:
    """Raises a ValueError for what has no raw records."""
    if not isinstance(source, tf.data.Dataset) and not callable(getattr(source, "read", None)):
        raise ValueError(
            "`source` must be tfdear.data.TFRecordFiles, ArrayRecordFiles or ImageFolder, with the "
            "paths, or a finite data set of raw records, such as "
            f"tf.data.Dataset.from_tensor_slices(paths). Received: {source!r}"
        )


def epoch_and_step(start: Sequence[object]) -> tuple[int, int]:
    """Where an iteration begins; raises a ValueError for what is no such place."""
    with contextlib.suppress(TypeError, ValueError):
        epoch, step = start
        return whole("epoch", epoch, 0), whole("step", step, 0)
    raise ValueError(f"`start` must be an epoch and a step, from 0. Received: {start!r}")
