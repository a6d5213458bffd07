# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The time of a sum of gradients between nodes, dense and compressed, and the bytes sent.

The steps of HiTopKComm are compared with the times of their parts: those of equations 7 to 10 of
Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters",
section 3, and those that the equations leave out (docs/compression.md has the terms). Every part is
measured alone, on all ranks at once, in turns with the steps, so that the sum of the parts is a
prediction and a change of the machine's speed affects both.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from tfdear.benchmarks import engine_parts
from tfdear.benchmarks.group import Group
from tfdear.benchmarks.settings import Settings
from tfdear.benchmarks.table import table_of
from tfdear.compression import MSTopK

_TIMEOUT = 300.0
_PAIR_BYTES = 8


def configurations(density: float) -> dict[str, dict[str, str]]:
    """The ways to sum that are compared: names, and the variables of their jobs."""
    return {
        "dense ring": {"TFDEAR_COLLECTIVE": "ring"},
        "dense hierarchical": {"TFDEAR_COLLECTIVE": "hierarchical"},
        "dense 2D torus": {"TFDEAR_COLLECTIVE": "torus2d"},
        "dense tree (TreeAR)": {"TFDEAR_COLLECTIVE": "tree"},
        "naive sparse all-gather": {
            "TFDEAR_COMPRESSION": (
                f"MSTopK({density}, dense_below=0, hierarchical=False, exchange='all_gather')"
            )
        },
        "HiTopKComm": {"TFDEAR_COMPRESSION": f"MSTopK({density}, dense_below=0)"},
        "HiTopKComm bfloat16": {
            "TFDEAR_COMPRESSION": f"MSTopK({density}, dense_below=0, values='bfloat16')"
        },
    }


@dataclasses.dataclass
class Row:
    """One way to sum; times in seconds."""

    name: str
    sent: float = 0.0  # Bytes that leave a node in a step, headers included.
    # Of each step, from when all ranks have a gradient until all have the sum.
    steps: list[float] = dataclasses.field(default_factory=list)
    exchanges: list[float] = dataclasses.field(default_factory=list)  # Without the copies.
    phases: list[dict[str, float]] = dataclasses.field(default_factory=list)  # Of the slowest rank.
    parts: list[dict[str, float]] = dataclasses.field(default_factory=list)  # Each alone.

    @property
    def step(self) -> float:
        """Median time of a step."""
        return statistics.median(self.steps)

    @property
    def exchange(self) -> float:
        """Median time of its communication."""
        return statistics.median(self.exchanges)

    @property
    def predicted(self) -> dict[str, float] | None:
        """The times of a step's parts, each measured alone; None if they were not."""
        return _medians(self.parts) if self.parts else None


def measure(
    settings: Settings,
    *,
    ranks_per_node: int,
    count: int,
    density: float,
    sums: Sequence[str] | None,
) -> dict[str, Any]:
    """Sums a gradient in every way, one job after the other, and prints a table.

    The gradient has `count` elements; `sums` are names of `configurations`, None all of them.
    Returns what the JSON file holds.
    """
    lab, repeats = settings.lab, settings.repeats
    ranks = lab.with_ranks(ranks_per_node)
    ways = configurations(density)
    for name in sums or ():
        if name not in ways:
            raise ValueError(f"sums are {', '.join(map(repr, ways))}. Received: {name!r}")
    if not engine_parts.are_built():
        settings.tell(
            "parts of sums are measured in the source tree only; wheels lack their library"
        )
    rows = []
    for name in sums or ways:
        with Group("with_tfdear", sys.executable, ranks, settings.pin, ways[name]) as group:
            # Starts the job, which measures its links; also warms up connections and memory.
            group.call("gradient_sum", _TIMEOUT, count=count, repeats=0)
            row = Row(name)
            before = lab.bytes_sent()
            group.call("gradient_sum", _TIMEOUT, count=count, repeats=0)
            # Sent by a call itself, and by its step that is not timed.
            overhead = lab.most_sent_since(before)
            has_parts = name.startswith("HiTopKComm") and engine_parts.are_built()
            turns = repeats if has_parts else 1
            for _ in range(turns):
                if has_parts:
                    _add_parts(group, count, density, ranks_per_node, row)
                before = lab.bytes_sent()
                _add_steps(group, count, repeats // turns, row)
                row.sent = (lab.most_sent_since(before) - overhead) / (repeats // turns)
            rows.append(row)
    _print(settings, rows, ranks_per_node, count, density)
    return {
        "benchmark": "sparse",
        "nodes": len(lab.nodes),
        "ranks_per_node": ranks_per_node,
        "elements": count,
        "density": density,
        "rate_bits_per_second": lab.bits_per_second,
        "rows": [
            {
                **dataclasses.asdict(row),
                "step": row.step,
                "exchange": row.exchange,
                "predicted": row.predicted,
            }
            for row in rows
        ],
    }


def _add_steps(group: Group, count: int, steps: int, row: Row) -> None:
    """Adds steps to a row: each lasts until the slowest rank has its sum."""
    answers = group.call("gradient_sum", _TIMEOUT, count=count, repeats=steps)
    names = ("begins", "copied", "first", "last", "ends")
    for step in range(steps):
        starts, copied, first, last, ends = (
            [answer[name][step] for answer in answers] for name in names
        )
        row.steps.append(max(ends) - min(starts))
        row.exchanges.append(max(last) - max(first))
        row.phases.append(
            {
                "copy in": max(copied) - min(starts),
                **{
                    phase: max(answer["phases"][phase] for answer in answers)
                    for phase in answers[0]["phases"]
                },
                "copy out": max(ends) - max(last),
            }
        )


def _add_parts(group: Group, count: int, density: float, ranks_per_node: int, row: Row) -> None:
    """Adds the time of every part of a step, measured alone: from the first start to the last end.

    All ranks share the cores and the memory of one machine here, as in a step.
    """
    of_ranks = group.call(
        "parts_of_sum",
        _TIMEOUT,
        count=count,
        nodes=len(group.lab.nodes) // ranks_per_node,
        ranks_per_node=ranks_per_node,
        k=MSTopK(density).elements(count, ranks_per_node),
        bfloat16=row.name.endswith("bfloat16"),
    )
    row.parts.append(
        {
            part: max(times[part][1] for times in of_ranks)
            - min(times[part][0] for times in of_ranks)
            for part in of_ranks[0]
        }
    )


def _medians(of_turns: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(turn[name] for turn in of_turns) for name in of_turns[0]}


def _print(
    settings: Settings, rows: list[Row], ranks_per_node: int, count: int, density: float
) -> None:
    nodes = len(settings.lab.nodes)
    pairs = (nodes - 1) * _PAIR_BYTES * density * count
    cells = []
    for row in rows:
        predicted = None if row.predicted is None else sum(row.predicted.values())
        cells.append(
            [
                ("sum", row.name),
                ("step ms", f"{row.step * 1e3:.1f}"),
                ("slowest", f"{max(row.steps) * 1e3:.1f}"),
                (f"{rows[0].name} / this", f"{rows[0].step / row.step:.2f}"),
                ("without copies", f"{row.exchange * 1e3:.1f}"),
                ("sent by a node", f"{row.sent / 1e6:.3f} MB"),
                ("of (m-1) 8 k", f"{row.sent / pairs:.3f}"),
                ("parts ms", "-" if predicted is None else f"{predicted * 1e3:.1f}"),
                ("step / parts", "-" if predicted is None else f"{row.step / predicted:.3f}"),
            ]
        )
    settings.tell(f"{nodes} nodes x {ranks_per_node} ranks, {count} elements, density {density:g}")
    settings.tell(table_of(cells))
    for row in rows:
        if row.predicted is None:
            continue
        turns = [
            f"{step * 1e3:.1f} / {sum(parts.values()) * 1e3:.1f}"
            for step, parts in zip(row.steps, row.parts, strict=True)
        ]
        phases = _format(_medians(row.phases))
        settings.tell(f"{row.name}: parts {_format(row.predicted)}. Took: {phases}.")
        settings.tell(f"{row.name}: step / parts of each turn, ms: {', '.join(turns)}.")


def _format(seconds: dict[str, float]) -> str:
    return "; ".join(f"{name} {s * 1e3:.1f} ms" for name, s in seconds.items())
