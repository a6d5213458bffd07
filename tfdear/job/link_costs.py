# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Measures what collectives cost on this job's links, at start-up. Imports no TensorFlow."""

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from tfdear.base.names import Lane, Operation
from tfdear.planning import cost_model

if TYPE_CHECKING:
    from tfdear.engine.engine import Engine

# [Note: Two regimes] The time per byte is fitted to large collectives back to back: the throughput
# of the link. There the start-up of each is hidden by the one before, and a link that lets bursts
# through, as shaped ones do, takes small messages faster than its rate. So the start-up, which
# includes the hand-over between threads, is fitted to small collectives, each run alone.
_SMALL_SIZES = (4 << 10, 8 << 10, 16 << 10)
_LARGE_SIZES = (256 << 10, 1 << 20, 4 << 20)
# Sizes larger than one that takes longer than this are not measured: they would only cost time.
_LONG_SECONDS = 0.05
_TIMES_ALONE = 9
_MOST_REPEATS = 200
# Measurements of each large size, of which the median counts: one stall of a connection does not
# change the fit.
_TIMES_EACH = 3


def measure(
    engine: "Engine", lane: Lane, together: Lane | None = None, window: float = 0.005
) -> cost_model.CommunicationCosts:
    """Fits a + b * bytes to the times of the collectives of one process group.

    All members of the group must call it together; the costs are as this rank sees them. Takes a
    few tenths of a second.

    `together` is a lane of all ranks that measure at once, each in its own group of `lane`, because
    their groups share links: they then do the same at the same time. `window` seconds of large
    collectives are measured at once: what a shaped link lets through in a burst, or a busy machine
    holds up, counts less in a longer one.

    Reference: Shi et al., "MG-WFBP", TPDS 2021, section 6.2.
    """
    data = np.zeros(_LARGE_SIZES[-1] // 4, np.float32)

    def agree(value: int) -> int:
        return what_rank_0_says(engine, lane if together is None else together, value)

    # New connections and untouched pages are slow; this warms both up.
    engine.run_collective(lane, Operation.ALL_REDUCE, data)
    costs = {}
    for operation in (Operation.REDUCE_SCATTER, Operation.ALL_GATHER, Operation.ALL_REDUCE):
        sizes, seconds = [], []
        for size in _LARGE_SIZES:
            part = data[: size // 4]
            once = engine.run_collective(lane, operation, part)
            repeats = agree(min(max(int(window / max(once, 1e-6)), 1), _MOST_REPEATS))
            # As many repeats go before, not measured and without a pause: after a pause, however
            # short, a shaped link lets a burst through.
            taken = [
                engine.run_collective(lane, operation, part, warm_up=repeats, repeats=repeats)
                for _ in range(_TIMES_EACH)
            ]
            sizes.append(size)
            seconds.append(statistics.median(taken) / repeats)
            if agree(int(seconds[-1] > _LONG_SECONDS)):
                break
        agree(0)  # Now no large collective is in transit.
        small = [_alone(engine, lane, operation, data[: size // 4]) for size in _SMALL_SIZES]
        costs[operation.name.lower()] = _fit(sizes, seconds, small)
    return cost_model.CommunicationCosts(**costs)


def what_rank_0_says(engine: "Engine", lane: Lane, value: int) -> int:
    """The value of the first member of a lane's group; all members call it together."""
    agreed = np.full(1, value, np.int64)
    engine.run_collective(lane, Operation.BROADCAST, agreed, root=0)
    return int(agreed[0])


def _alone(engine: "Engine", lane: Lane, operation: Operation, data: np.ndarray) -> float:
    """Median seconds of a collective that runs alone, as its caller sees it."""
    times = []
    for _ in range(_TIMES_ALONE):
        start = time.perf_counter()
        engine.run_collective(lane, operation, data)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _fit(sizes: list[int], seconds: list[float], small: list[float]) -> cost_model.LinearCost:
    """See [Note: Two regimes]."""
    try:
        per_byte = cost_model.fit(sizes, seconds).b
    except ValueError:
        # On a very busy machine or a very slow link, no straight line fits the times: the largest
        # size is the best estimate.
        per_byte = seconds[-1] / sizes[-1]
    # The least-squares start-up, given the time per byte.
    rest = [t - per_byte * size for size, t in zip(_SMALL_SIZES, small, strict=True)]
    return cost_model.LinearCost(max(statistics.fmean(rest), 0.0), per_byte)
