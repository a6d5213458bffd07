# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What compression holds back, in files beside Keras's checkpoints.

[Note: Files of residuals]
All ranks write the same checkpoint to one path, but each holds back gradients of its own. So each
writes a file beside the checkpoint, before the checkpoint is renamed into place; its name has the
rank and the optimizer's step. A rank that loads a checkpoint reads the file of the checkpoint's
step. The files of the previous step are kept, because a job may end when some ranks have written
theirs and the checkpoint is not there yet. If any rank lacks its file, all ranks start with nothing
held back: sums stay right, but the training is not the uninterrupted one bit for bit, and a warning
says so.
"""

import contextlib
import errno
import json
import os
import warnings
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdear import errors
from tfdear.gradients.variable import DearVariable
from tfdear.job import job as job_module

_FORMAT = 1
_KEPT = 2


def write(model: keras.Model, target: str | os.PathLike[str]) -> None:
    """Writes this rank's file for a checkpoint that is about to appear at `target`."""
    job, numbers = _compressing_job(model), _numbers_of(model)
    if job is None or not numbers:
        return
    job.engine.synchronize(job.options.timeout)
    step = _step(model)
    path = _path(job, target, step)
    own = path + ".new"
    header = {"format": _FORMAT, "step": step, "rank": job.rank, "world_size": job.world_size}
    state = job.engine.save_compression(numbers)
    try:
        # Records have checksums.
        with tf.io.TFRecordWriter(own) as writer:
            writer.write(json.dumps(header).encode())
            writer.write(state)
        tf.io.gfile.rename(own, path, overwrite=True)
    except tf.errors.NotFoundError as error:
        # The error of Python's own files, with the number that a retry checks: another rank may
        # remove a folder of backups while this one writes.
        raise FileNotFoundError(errno.ENOENT, str(error), own) from error
    steps = _by_step(path)
    for old in sorted(steps)[:-_KEPT]:
        if old != step:
            with contextlib.suppress(tf.errors.NotFoundError):
                tf.io.gfile.remove(steps[old])


def read(model: keras.Model, source: str | os.PathLike[str]) -> None:
    """Restores what was held back when the checkpoint at `source`, just loaded, was written."""
    job, numbers = _compressing_job(model), _numbers_of(model)
    if job is None or not numbers:
        return
    job.engine.synchronize(job.options.timeout)
    problem = ""
    try:
        state = _read(job, _path(job, source, _step(model)))
        job.engine.load_compression(state, numbers)
    except (OSError, ValueError, errors.TfdearError, tf.errors.OpError) as error:
        problem = f"rank {job.rank}: {error}"
    # On all ranks or on none: what the ranks hold back belongs together.
    problems = [text for text in job.exchange(problem) if text]
    if problems:
        job.engine.load_compression(b"", numbers)
        warnings.warn(
            f"Weights were loaded from {str(source)!r}, but not what compression held back when "
            "they were saved; every rank starts with nothing held back, and with the warm-up of "
            "the density. Gradients of about 1 / density steps are lost. Keep the files "
            "'.*.residual' beside a checkpoint, and load it with the same number of ranks per "
            f"node. Received: {'; '.join(problems)}",
            stacklevel=2,
        )


class CompressionState(tf.train.experimental.PythonState):
    """What compression holds back on this rank, as part of a `tf.train.Checkpoint`."""

    def __init__(self, job: job_module.Job):
        super().__init__()
        self._job = job

    def serialize(self) -> bytes:
        """The state, for the checkpoint that is being written."""
        if not self._job.compresses:
            return b""
        self._job.engine.synchronize(self._job.options.timeout)
        return self._job.engine.save_compression()

    def deserialize(self, string_value: bytes) -> None:
        """Restores the state from a checkpoint."""
        if self._job.compresses:
            self._job.engine.synchronize(self._job.options.timeout)
            self._job.engine.load_compression(string_value)


def _read(job: job_module.Job, path: str) -> bytes:
    name = os.path.basename(path)
    if not tf.io.gfile.exists(path):
        others = sorted(_by_step(path)) or "none"
        raise ValueError(f"there is no file {name!r}; steps of which there is one: {others}")
    records = [record.numpy() for record in tf.data.TFRecordDataset(path)]
    if len(records) != 2:
        raise ValueError(f"{name!r} has {len(records)} records instead of 2: it is cut off")
    try:
        header = json.loads(records[0])
        found = header["format"], header["rank"], header["world_size"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{name!r} does not say what it is: {error!r}") from error
    if found != (_FORMAT, job.rank, job.world_size):
        raise ValueError(f"{name!r} was written as {header}")
    return records[1]


def _compressing_job(model: keras.Model) -> job_module.Job | None:
    """The job of a model, if it compresses."""
    job = getattr(getattr(model, "distribute_strategy", None), "_job", None)
    return job if job is not None and job.is_open and job.compresses else None


def _numbers_of(model: keras.Model) -> Sequence[int]:
    """By which the engine knows the variables of a model; what others hold back is their own."""
    values = [variable.value for variable in model.variables]
    return [value.number for value in values if isinstance(value, DearVariable)]


def _step(model: keras.Model) -> int:
    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    return 0 if iterations is None else int(iterations)


def _path(job: job_module.Job, target: str | os.PathLike[str], step: int) -> str:
    folder, file = os.path.split(os.fspath(target))
    name = f".{file}.rank{job.rank}of{job.world_size}.step{step}.residual"
    return os.path.join(folder, name)


def _by_step(path: str) -> dict[int, str]:
    """The files of the same rank and checkpoint as `path`, by their step."""
    folder, file = os.path.split(path)
    stem = file[: file.rindex(".step")] + ".step"
    with contextlib.suppress(tf.errors.NotFoundError):
        names = tf.io.gfile.listdir(folder or ".")
        of_stem = [n for n in names if n.startswith(stem) and n.endswith(".residual")]
        return {_step_of(name): os.path.join(folder, name) for name in of_stem}
    return {}


def _step_of(name: str) -> int:
    with contextlib.suppress(ValueError):
        return int(name[name.rindex(".step") + 5 : -len(".residual")])
    return -1
