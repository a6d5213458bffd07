# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the arguments of a cache may be, and what they mean."""

import tensorflow as tf

from tfdear.base import memory as memory_module
from tfdear.base.checks import is_number, is_whole
from tfdear.base.sizes import bytes_of
from tfdear.job import job as job_module

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
    if max_rate is not None and (not is_number(max_rate) or max_rate <= 0):
        raise ValueError(
            "`max_rate` must be a positive number of bytes per second, or None. Received: "
            f"{max_rate!r}"
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
        return memory_module.available_bytes() // 2
    return bytes_of(memory, "memory")


def seed_of(seed: int | None) -> int:
    """The seed of orders."""
    if seed is None:
        return tf.compat.v1.get_seed(0)[0]
    if not is_whole(seed):
        raise ValueError(f"`seed` must be a whole number. Received: {seed!r}")
    return seed
