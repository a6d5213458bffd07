# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The job that `tfdear doctor` runs: every rank calls collectives and checks what comes back.

Prints one line per check, `ok` or `FAILED`. The exit code is 0 when all checks of this rank passed.
Runs with any number of ranks: `tfdear run -n 4 -m tfdear.commands.doctor.self_test`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import tfdear

# Not a multiple of usual world sizes, so that shards differ in size. 4 MiB: more than one message.
_ELEMENTS = (1 << 20) + 1


def main() -> int:
    """Runs all checks; returns the exit code."""
    start = time.perf_counter()
    strategy = tfdear.DearStrategy()
    rank, world_size = strategy.rank, strategy.world_size
    _report(rank, "rendezvous", f"{world_size} ranks", start)

    # Integers below 2**24 are exact in float32: results are compared bit for bit.
    def values_of(one_rank: int) -> np.ndarray:
        return ((np.arange(_ELEMENTS) * 31 + one_rank) % 1009).astype(np.float32)

    own = tf.constant(values_of(rank))
    total = np.sum([values_of(r) for r in range(world_size)], axis=0)
    first_row, end_row = (_ELEMENTS * r // world_size for r in (rank, rank + 1))
    # Each rank contributes a different number of rows.
    everything = np.concatenate([values_of(r)[: 1000 + r] for r in range(world_size)])

    checks: list[tuple[str, Callable[[], tf.Tensor], np.ndarray]] = [
        ("all_reduce", lambda: strategy.all_reduce(own), total),
        ("reduce_scatter", lambda: strategy.reduce_scatter(own), total[first_row:end_row]),
        ("all_gather", lambda: strategy.all_gather(own[: 1000 + rank]), everything),
    ]
    passed = True
    for name, collective, expected in checks:
        start = time.perf_counter()
        received = np.asarray(collective())
        problem = _difference(received, expected)
        _report(rank, name, problem or f"{expected.nbytes / 1e6:.2f} MB", start, not problem)
        passed = passed and not problem
    start = time.perf_counter()
    strategy.barrier()
    _report(rank, "barrier", "", start)
    return 0 if passed else 1


def _difference(received: np.ndarray, expected: np.ndarray) -> str:
    if received.shape != expected.shape:
        return f"the shape is {received.shape}, expected {expected.shape}"
    wrong = np.flatnonzero(received != expected)
    if wrong.size:
        first = wrong[0]
        return (
            f"{wrong.size} of {expected.size} elements are wrong, the first at {first}: "
            f"{received[first]}, expected {expected[first]}"
        )
    return ""


def _report(rank: int, name: str, text: str, start: float, passed: bool = True) -> None:
    milliseconds = 1000 * (time.perf_counter() - start)
    result = "ok" if passed else "FAILED"
    print(f"{result:6} rank {rank} {name:14} {milliseconds:8.1f} ms  {text}".rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
