# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Training of a real model between slow nodes, dense and compressed: time of a step, and result.

The result does not depend on how fast the link is, so it is learned on one that is not shaped.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tfdear import compression
from tfdear.benchmarks.group import Group
from tfdear.benchmarks.settings import Settings
from tfdear.benchmarks.table import table_of

_BUILD_SECONDS = 300.0
_STEP_SECONDS = 60.0
_LEARNING_SECONDS = 3600.0
_DENSE = {"dense": {}, "dense hierarchical": {"TFDEAR_COLLECTIVE": "hierarchical"}}


@dataclasses.dataclass
class Row:
    """One way to communicate; times in seconds per step, of every repeat."""

    name: str
    gradient_bytes: int = 0
    seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)  # By rate.
    sent: dict[str, float] = dataclasses.field(default_factory=dict)  # Bytes per node and step.
    measure: str = ""
    learned: float | None = None


def measure(
    settings_of_rate: Mapping[str, Callable[[], AbstractContextManager[Settings]]],
    *,
    ranks_per_node: int,
    task: str,
    batch_size: int,
    sums: Sequence[str],
    learning_steps: int,
) -> dict[str, Any]:
    """Trains with every kind of sum and prints a table.

    `settings_of_rate` makes the settings with a lab, by the rate between its nodes; an iteration is
    a step. `batch_size` is that of a rank. `sums` are as `variables` takes them; the others are
    compared with the first. `learning_steps` are those of the training whose result is reported; 0:
    none. Returns what the JSON file holds.
    """
    rows = [Row(name) for name in sums]
    for rate, make_settings in settings_of_rate.items():
        for row in rows:
            with make_settings() as settings, _group(settings, ranks_per_node, row.name) as group:
                lab, tell, steps = settings.lab, settings.tell, settings.iterations
                arguments = {"task": task, "batch_size": batch_size}
                answers = group.call("learn", _BUILD_SECONDS, steps=learning_steps, **arguments)
                row.gradient_bytes = answers[0]["gradient_bytes"]
                if rate == "none" and learning_steps:
                    answers = group.call("learned", _LEARNING_SECONDS)
                    row.measure, row.learned = answers[0]["measure"], answers[0]["value"]
                    tell(f"{row.name}: {row.measure} {row.learned:.4f}")
                    continue
                limit = _STEP_SECONDS * (2 + steps)
                group.call("learning_step", limit, steps=steps)
                before = lab.bytes_sent()
                row.seconds[rate] = [
                    max(group.call("learning_step", limit, steps=steps))
                    for _ in range(settings.repeats)
                ]
                # The first steps of every repeat are not timed, but they send, too.
                sending = settings.repeats * (answers[0]["first_steps"] + steps)
                row.sent[rate] = lab.most_sent_since(before) / sending
                tell(f"{row.name}, {rate}: {statistics.median(row.seconds[rate]):.3f} s")
    _print(rows, tell)
    return {
        "benchmark": "training",
        "task": task,
        "batch_size": batch_size,
        "ranks_per_node": ranks_per_node,
        "learning_steps": learning_steps,
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def variables(name: str) -> dict[str, str]:
    """Returns the environment variables of a job that sums gradients in this way.

    That is "dense", "dense hierarchical", or a compression, such as "MSTopK(density=0.01)".
    """
    if name in _DENSE:
        return _DENSE[name]
    try:
        compression.parse(name)
    except ValueError as error:
        choices = ", ".join(map(repr, _DENSE))
        raise ValueError(f"sums are {choices}, or a compression. {error}") from None
    return {"TFDEAR_COMPRESSION": name}


def _group(settings: Settings, ranks_per_node: int, name: str) -> Group:
    ranks = settings.lab.with_ranks(ranks_per_node)
    return Group("with_tfdear", sys.executable, ranks, settings.pin, variables(name))


def _print(rows: Sequence[Row], tell: Callable[[str], None]) -> None:
    table_rows = []
    for row in rows:
        cells = [("sums", row.name)]
        for rate in rows[0].seconds:
            seconds = statistics.median(row.seconds[rate])
            first = statistics.median(rows[0].seconds[rate])
            cells.append((f"step s, {rate}", f"{seconds:.3f}"))
            cells.append(("slowest", f"{max(row.seconds[rate]):.3f}"))
            cells.append(("times as fast", f"{first / seconds:.2f}"))
            cells.append(("MB sent", f"{row.sent[rate] / 1e6:.2f}"))
        learned = "" if row.learned is None else f"{row.learned:.4f}"
        table_rows.append([*cells, (rows[0].measure or "result", learned)])
    tell(table_of(table_rows))
