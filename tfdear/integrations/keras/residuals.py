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
import glob
import json
import os
import pathlib
import warnings

import keras
import tensorflow as tf

from tfdear import errors
from tfdear.job import job as job_module

_FORMAT = 1
_KEPT = 2


def write(model: keras.Model, target: pathlib.Path) -> None:
    """Writes this rank's file for a checkpoint that is about to appear at `target`."""
    job = _compressing_job(model)
    if job is None:
        return
    job.engine.synchronize(job.options.timeout)
    step = _step(model)
    path = _path(job, target, step)
    own = path.with_name(path.name + ".new")
    header = {"format": _FORMAT, "step": step, "rank": job.rank, "world_size": job.world_size}
    state = job.engine.save_compression()
    try:
        # Records have checksums.
        with tf.io.TFRecordWriter(str(own)) as writer:
            writer.write(json.dumps(header).encode())
            writer.write(state)
    except tf.errors.NotFoundError as error:
        # The error of Python's own files, with the number that a retry checks: another rank may
        # remove a folder of backups while this one writes.
        raise FileNotFoundError(errno.ENOENT, str(error), str(own)) from error
    os.replace(own, path)
    steps = _by_step(path)
    for old in sorted(steps)[:-_KEPT]:
        if old != step:
            steps[old].unlink(missing_ok=True)


def read(model: keras.Model, source: pathlib.Path) -> None:
    """Restores what was held back when the checkpoint at `source`, just loaded, was written."""
    job = _compressing_job(model)
    if job is None:
        return
    job.engine.synchronize(job.options.timeout)
    problem = ""
    try:
        job.engine.load_compression(_read(job, _path(job, source, _step(model))))
    except (OSError, ValueError, errors.TfdearError, tf.errors.OpError) as error:
        problem = f"rank {job.rank}: {error}"
    # On all ranks or on none: what the ranks hold back belongs together.
    problems = [text for text in job.exchange(problem) if text]
    if problems:
        job.engine.load_compression(b"")
        warnings.warn(
            f"Weights were loaded from {str(source)!r}, but not what compression held back when "
            "they were saved; every rank starts with nothing held back. Gradients of about "
            "1 / density steps are lost. Keep the files '.*.residual' beside a checkpoint, and "
            f"load it with the same number of ranks per node. Received: {'; '.join(problems)}",
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


def _read(job: job_module.Job, path: pathlib.Path) -> bytes:
    if not path.exists():
        others = sorted(_by_step(path)) or "none"
        raise ValueError(f"there is no file {path.name!r}; steps of which there is one: {others}")
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    if len(records) != 2:
        raise ValueError(f"{path.name!r} has {len(records)} records instead of 2: it is cut off")
    try:
        header = json.loads(records[0])
        found = header["format"], header["rank"], header["world_size"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path.name!r} does not say what it is: {error!r}") from error
    if found != (_FORMAT, job.rank, job.world_size):
        raise ValueError(f"{path.name!r} was written as {header}")
    return records[1]


def _compressing_job(model: keras.Model) -> job_module.Job | None:
    """The job of a model, if its compression holds something back."""
    job = getattr(getattr(model, "distribute_strategy", None), "_job", None)
    held_back = (
        job is not None
        and job.is_open
        and job.compresses
        and job.options.compression.error_feedback
    )
    return job if held_back else None


def _step(model: keras.Model) -> int:
    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    return 0 if iterations is None else int(iterations)


def _path(job: job_module.Job, target: pathlib.Path, step: int) -> pathlib.Path:
    name = f".{target.name}.rank{job.rank}of{job.world_size}.step{step}.residual"
    return target.with_name(name)


def _by_step(path: pathlib.Path) -> dict[int, pathlib.Path]:
    """The files of the same rank and checkpoint as `path`, by their step."""
    stem = glob.escape(path.name[: path.name.rindex(".step")])
    return {_step_of(file): file for file in path.parent.glob(f"{stem}.step*.residual")}


def _step_of(path: pathlib.Path) -> int:
    with contextlib.suppress(ValueError):
        return int(path.name[path.name.rindex(".step") + 5 : -len(".residual")])
    return -1
