# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Measures what collectives cost on this job's links, at start-up. Imports no TensorFlow."""

from typing import TYPE_CHECKING

import numpy as np

from tfdear import cost_model

if TYPE_CHECKING:
    from tfdear.engine import Engine, Lane

_SIZES = (16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
# A collective that takes longer than this ends the sizes: larger ones would only cost time.
_LONG_SECONDS = 0.05
_REPEATS_SECONDS = 0.01
_MOST_REPEATS = 40


def measure(engine: "Engine", lane: "Lane") -> cost_model.CommunicationCosts:
    """Fits a + b * bytes to the times of the collectives of one process group.

    All members of the group must call it together. It runs them back to back, as training does.
    Takes a few tenths of a second.

    Args:
        engine: The started engine.
        lane: Whose group to measure.

    Returns:
        The costs of a reduce-scatter, an all-gather and an all-reduce, as seen by this rank.

    Reference: Shi et al., "MG-WFBP", TPDS 2021, section 6.2.
    """
    # Here: the planning modules can be used where the library is not built.
    from tfdear.engine import Phase

    data = np.zeros(_SIZES[-1] // 4, np.float32)
    agreed = np.zeros(1, np.int64)

    def agree(value: int) -> int:
        agreed[0] = value
        engine.run_collective(lane, Phase.BROADCAST, agreed, root=0)
        return int(agreed[0])

    costs = {}
    for phase in (Phase.REDUCE_SCATTER, Phase.ALL_GATHER, Phase.ALL_REDUCE):
        sizes, seconds = [], []
        for size in _SIZES:
            part = data[: size // 4]
            once = engine.run_collective(lane, phase, part)
            wanted = int(_REPEATS_SECONDS / max(once, 1e-6))
            repeats = agree(min(max(wanted, 1), _MOST_REPEATS))
            # Not measured: what a link lets through in a burst after a pause.
            engine.run_collective(lane, phase, part, repeats=repeats)
            once = engine.run_collective(lane, phase, part, repeats=repeats) / repeats
            sizes.append(size)
            seconds.append(once)
            if agree(int(once > _LONG_SECONDS)):
                break
        costs[phase.name.lower()] = _fit(sizes, seconds)
    return cost_model.CommunicationCosts(**costs)


def _fit(sizes: list[int], seconds: list[float]) -> cost_model.LinearCost:
    try:
        return cost_model.fit(sizes, seconds)
    except ValueError:
        # A machine so busy, or a link so slow, that there is no line through the times: the
        # largest size says the most.
        return cost_model.LinearCost(0.0, seconds[-1] / sizes[-1])
