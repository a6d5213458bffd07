# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the collectives of a started group cost: the line through measured times."""

from __future__ import annotations

import statistics

from tfdear import cost_model
from tfdear.benchmarks.group import Group

_SIZES = (16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20)
# A shaped link lets its first bytes pass at once; as long a run as this makes that negligible.
_MEASURE_SECONDS = 0.3
_MOST_REPEATS = 400
_TIMEOUT = 120.0
_ROUNDS = 3


def measure(group: Group) -> cost_model.CommunicationCosts:
    """Measures and fits the costs of the three collectives between the ranks of a group."""
    costs = {}
    for name in ("reduce_scatter", "all_gather", "all_reduce"):
        seconds = []
        for nbytes in _SIZES:
            call = {"name": name, "nbytes": nbytes}
            first = max(group.call("collective", _TIMEOUT, repeats=2, **call))
            repeats = max(1, min(_MOST_REPEATS, int(_MEASURE_SECONDS / max(first, 1e-5))))
            seconds.append(
                statistics.median(
                    max(group.call("collective", _TIMEOUT, repeats=repeats, **call))
                    for _ in range(_ROUNDS)
                )
            )
        costs[name] = cost_model.fit(_SIZES, seconds)
    return cost_model.CommunicationCosts(**costs)
