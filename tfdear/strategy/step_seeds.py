# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Random numbers of a step, which are this rank's own: noise, augmentation, TensorFlow's dropout.

TensorFlow draws them by the seed of the program, which all ranks share so that they shuffle data
alike, and by the place of the op. In a step ranks have different rows; with the same numbers, row i
of one would have the noise of row i of another. Keras's generators have states, which differ by
themselves (`variable_creation`).
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.job import job as job_module

# Keeps the seeds of two ranks apart for longer than any training counts.
STRIDE = 1_000_003


# Whether what is drawn is a rank's own.
_are_own: contextvars.ContextVar[bool] = contextvars.ContextVar("are_own", default=False)


@contextlib.contextmanager
def of_rank(job: job_module.Job) -> Iterator[None]:
    """Within it, ops draw other random numbers than on other ranks; on rank 0 the usual ones.

    The same ones on all, if that is asked for.
    """
    token = _are_own.set(True)
    try:
        with _moved_by(0 if job.options.shared_seeds else job.rank):
            yield
    finally:
        _are_own.reset(token)


@contextlib.contextmanager
def of_all(job: job_module.Job) -> Iterator[None]:
    """Within it, also in `of_rank`, ops draw the same on all ranks: an optimizer's do."""
    if not _are_own.get():
        yield
        return
    token = _are_own.set(False)
    try:
        with _moved_by(0 if job.options.shared_seeds else -job.rank):
            yield
    finally:
        _are_own.reset(token)


@contextlib.contextmanager
def _moved_by(strides: int) -> Iterator[None]:
    if tf.executing_eagerly():
        owner, name = _tf_private.context.context(), "_seed"
    else:
        owner, name = _tf_private.ops.get_default_graph(), "seed"
    seed = getattr(owner, name)
    if seed is not None:
        setattr(owner, name, seed + strides * STRIDE)
    try:
        yield
    finally:
        setattr(owner, name, seed)
