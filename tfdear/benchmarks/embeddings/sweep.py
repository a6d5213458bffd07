# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What all communication for one table takes, at every sparsity of its gradient.

There is no computation that could hide it: a step is a lookup, a gradient of ones, and the update.

Reference: Li et al., "EmbRace", ICPP 2022, Figure 4.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from tfdear.benchmarks.embeddings.methods import METHODS, Computation, Jobs, Lookup, Result
from tfdear.benchmarks.settings import Settings
from tfdear.benchmarks.table import table
from tfdear.planning.table_choice import TableChoice

# The method that measures each exchange that can be chosen.
_MEASURED_BY = {"all_reduce": "dense", "all_gather": "all_gather", "all_to_all": "all_to_all"}


def measure(
    settings: Settings,
    *,
    methods: Sequence[str],
    rows: int,
    columns: int,
    sparsity: Sequence[float],
    horovod_python: str | None = None,
) -> dict[str, Any]:
    """Measures methods at every sparsity, one method after the other, and prints a table.

    Args:
        settings: Where and how often.
        methods: Names of `METHODS`, one of tfdear's among them. That of Horovod is left out where
            it is not there.
        rows: Of the table.
        columns: Of the table.
        sparsity: Parts of the rows that a rank's batch has not, in percent.
        horovod_python: A Python that has Horovod, or None.

    Returns:
        What the JSON file holds.
    """
    ranks = len(settings.lab.nodes)
    used_rows = {percent: max(1, round(rows * (1 - percent / 100))) for percent in sparsity}
    results: dict[float, dict[str, Result]] = {percent: {} for percent in sparsity}
    costs = None
    for name in methods:
        # Where batches have all rows, the models of all methods take more memory than there is.
        with Jobs(settings, [name], horovod_python) as jobs:
            if not jobs.methods:
                continue
            jobs.build(name, [Computation()], [Lookup(rows, columns, 0)])
            if not METHODS[name].foreign:
                costs = costs or jobs.costs()
            for percent in sparsity:
                ids = {"function": "spread", "rows": rows, "used": used_rows[percent]}
                results[percent] |= jobs.measure({name: [ids]})
        times = (f"{results[percent][name].communication * 1e3:.1f}" for percent in sparsity)
        settings.tell(f"{name}: {', '.join(times)} ms")
    assert costs is not None
    methods = list(results[sparsity[0]])
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // ranks
    choice = TableChoice(ranks, costs.collectives, memory)
    points = []
    for percent in sparsity:
        used = used_rows[percent]
        points.append((percent, used, results[percent], choice.exchange(rows, columns, used)))
    _print(settings, methods, points)
    return {
        "benchmark": "embeddings sweep",
        "ranks": ranks,
        "rate_bits_per_second": settings.lab.bits_per_second,
        "rows": rows,
        "columns": columns,
        "costs": dataclasses.asdict(costs),
        "methods": {name: METHODS[name].description for name in methods},
        "points": [
            {
                "sparsity": percent,
                "used": used,
                "chosen": chosen,
                "predicted": choice.compare(rows, columns, used),
                "results": [
                    {
                        **vars(result),
                        "median": result.median,
                        "communication": result.communication,
                    }
                    for result in results.values()
                ],
            }
            for percent, used, results, chosen in points
        ],
    }


def _print(settings: Settings, methods: Sequence[str], points: Sequence[Any]) -> None:
    heads = ["ms", *(f"{percent:g} %" for percent, *_ in points)]
    for title, number in (("all communication", "communication"), ("a step", "median")):
        lines = [heads]
        for name in methods:
            times = (getattr(results[name], number) for _, _, results, _ in points)
            lines.append([name, *(f"{seconds * 1e3:.1f}" for seconds in times)])
        if number == "communication":
            lines.append(["chosen", *(chosen for *_, chosen in points)])
            lines.append(["chosen / best", *(_chosen_over_best(*point[2:]) for point in points)])
        settings.tell(f"\n{title}, by sparsity\n{table(lines, equal_widths=True)}")


def _chosen_over_best(results: dict[str, Result], chosen: str) -> str:
    result = results.get(_MEASURED_BY[chosen])
    if result is None:
        return "not measured"
    best = min(other.communication for other in results.values())
    return f"{result.communication / best:.3f}"
