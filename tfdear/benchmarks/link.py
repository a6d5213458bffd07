# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The costs of a started group's collectives, measured as every job does at its start."""

from __future__ import annotations

import statistics

from tfdear.benchmarks.group import Group
from tfdear.planning import cost_model

_TIMEOUT = 120.0
_ROUNDS = 5


def measure(group: Group, method: str = "costs") -> cost_model.CommunicationCosts:
    """Measures and fits the costs of the three collectives between the ranks of a group.

    `method`: the name by which ranks measure theirs.
    """
    rounds = [group.call(method, _TIMEOUT)[0] for _ in range(_ROUNDS)]
    return cost_model.CommunicationCosts(
        **{
            phase: cost_model.LinearCost(
                statistics.median(costs[phase]["a"] for costs in rounds),
                statistics.median(costs[phase]["b"] for costs in rounds),
            )
            for phase in rounds[0]
        }
    )
