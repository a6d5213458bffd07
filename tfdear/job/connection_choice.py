# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How many connections to each peer carry gradients, as measured at the start. No TensorFlow.

On most networks one connection gets all that a link has, and more only cost. In clouds and on
bundles of links it gets a part: then several get more, how much depends on how they fall on the
paths.
"""

import statistics

import numpy as np
from absl import logging

from tfdear.base.names import Lane, Operation
from tfdear.engine.engine import Engine
from tfdear.job.groups import ProcessGroups
from tfdear.job.link_costs import what_rank_0_says

# Each is tried if the one before was faster.
_NUMBERS = (1, 4, 8)
# What more connections must save of the time: less may be chance.
_LEAST_GAIN = 0.2
_MOST_BYTES = 4 << 20
_LEAST_BYTES = 256 << 10
# Of one measurement, of which the median counts; and as long before it, for the burst that a link
# lets through after a pause.
_SECONDS = 0.03
_TIMES = 3


def choose(engine: Engine, groups: ProcessGroups) -> None:
    """Measures, and uses as many as are fastest; all ranks call it together.

    Takes 1.2 to 1.4 s on lines of 1 Gbit/s and 100 Mbit/s where one connection is enough, and
    longer on slower ones.
    """
    data = np.zeros(_LEAST_BYTES // 4, np.float32)
    while data.nbytes < _MOST_BYTES and not _rank_0_says(engine, _seconds(engine, data) > _SECONDS):
        data = np.zeros(2 * data.size, np.float32)
    fastest, least = _NUMBERS[0], _typical(engine, groups, data, _NUMBERS[0])
    for number in _NUMBERS[1:]:
        seconds = _typical(engine, groups, data, number)
        if not _rank_0_says(engine, seconds < (1 - _LEAST_GAIN) * least):
            break
        # Something else may have held the fewer ones up.
        least = min(least, _typical(engine, groups, data, fastest))
        if not _rank_0_says(engine, seconds < (1 - _LEAST_GAIN) * least):
            break
        fastest, least = number, seconds
    groups.use_connections(engine, fastest)
    if fastest > 1:
        logging.info("tfdear: %d connections to each peer are faster than one", fastest)


def _typical(engine: Engine, groups: ProcessGroups, data: np.ndarray, number: int) -> float:
    """Seconds of a sum, back to back with others, over this many connections."""
    groups.use_connections(engine, number)
    once = _seconds(engine, data)  # New connections are slow, too.
    repeats = what_rank_0_says(engine, Lane.GRADIENTS, max(int(_SECONDS / max(once, 1e-6)), 1))
    taken = [_seconds(engine, data, repeats) / repeats for _ in range(_TIMES)]
    return statistics.median(taken)


def _seconds(engine: Engine, data: np.ndarray, repeats: int = 1) -> float:
    return engine.run_collective(
        Lane.GRADIENTS, Operation.ALL_REDUCE, data, warm_up=repeats, repeats=repeats
    )


def _rank_0_says(engine: Engine, yes: bool) -> bool:
    return bool(what_rank_0_says(engine, Lane.GRADIENTS, int(yes)))
