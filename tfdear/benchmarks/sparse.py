# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a sum of gradients takes between nodes, dense and compressed, and what a node sends.

The times are compared with the equations of Shi et al., "Towards Scalable Distributed Training of
Deep Learning on Public Cloud Clusters", section 3: 7 (reduce-scatter within the node), 8
(selection), 9 (all-gather between the nodes) and 10 (all-gather within the node), with measured
start-ups and times per byte. Where the equations count 4 or 8 bytes of a pair, what was coded
counts; the last step gathers whole shards, as the algorithm says, and not the selected elements
alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tfdear import netlab
from tfdear.benchmarks import report
from tfdear.benchmarks.group import Group
from tfdear.cost_model import LinearCost

_TIMEOUT = 300.0
_PAIR_BYTES = 8
_ROUNDS = 5


def configurations(density: float) -> dict[str, dict[str, str]]:
    """What is compared: names, and the variables of their jobs."""
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
    seconds: float  # Of a step, with the copies into and out of the engine.
    exchange: float  # Of its communication, from the moment when all ranks have a gradient.
    sent: float  # Bytes that leave a node in a step, headers included.
    phases: dict[str, float]
    predicted: dict[str, float] | None = None


def measure(
    lab: netlab.Lab,
    ranks_per_node: int,
    count: int,
    density: float,
    sums: Sequence[str] | None,
    repeats: int,
    pin: bool,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Sums a gradient in every way, one job after the other, and prints a table.

    Args:
        lab: The nodes.
        ranks_per_node: Ranks on each.
        count: Elements of the gradient.
        density: Fraction that is sent.
        sums: Names of `configurations`; None: all of them.
        repeats: Steps of each, of which the median counts.
        pin: Whether every rank gets one core.
        tell: Prints a line.

    Returns:
        What the JSON file holds.

    Raises:
        ValueError: There is no sum of such a name.
    """
    ranks = dataclasses.replace(
        lab, nodes=tuple(node for node in lab.nodes for _ in range(ranks_per_node))
    )
    ways = configurations(density)
    for name in sums or ():
        if name not in ways:
            raise ValueError(f"sums are {', '.join(map(repr, ways))}. Received: {name!r}")
    rows = []
    for name in sums or ways:
        with Group("with_tfdear", sys.executable, ranks, pin, ways[name]) as group:
            # Starts the job, which measures its links; young connections and memory are slow.
            group.call("gradient_sum", _TIMEOUT, count=count, repeats=1)
            # Bytes of steps are what more steps send more: every call drains the links, too.
            counted = [_sent(lab)]
            for steps in (1, 1 + repeats):
                answers = group.call("gradient_sum", _TIMEOUT, count=count, repeats=steps)
                counted.append(_sent(lab))
            first, second = (
                [b - a for a, b in zip(before, after, strict=True)]
                for before, after in itertools.pairwise(counted)
            )
            sent = max(b - a for a, b in zip(first, second, strict=True)) / repeats
            # The slowest rank counts. Communication begins when the last rank has its gradient.
            seconds = [max(of_step) for of_step in _by_step(answers, "seconds")]
            exchange = [
                max(ends) - max(begins)
                for begins, ends in zip(
                    _by_step(answers, "begins"), _by_step(answers, "ends"), strict=True
                )
            ]
            row = Row(
                name,
                statistics.median(seconds),
                statistics.median(exchange),
                sent,
                answers[0]["phases"],
            )
            if name.startswith("HiTopKComm"):
                row.predicted = _predict(group, answers[0]["bytes"], count, density, ranks_per_node)
            rows.append(row)
    _print(rows, len(lab.nodes), ranks_per_node, count, density, tell)
    return {
        "benchmark": "sparse",
        "nodes": len(lab.nodes),
        "ranks_per_node": ranks_per_node,
        "elements": count,
        "density": density,
        "rate_bits_per_second": lab.bits_per_second,
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def _sent(lab: netlab.Lab) -> list[int]:
    return [node.bytes_sent() for node in lab.nodes]


def _by_step(answers: list[dict], name: str) -> list[tuple[float, ...]]:
    """Of each step, what the ranks said."""
    return list(zip(*(answer[name] for answer in answers), strict=True))


def _predict(
    group: Group, coded: int, count: int, density: float, ranks_per_node: int
) -> dict[str, float]:
    """Equations 7 to 10, in seconds."""
    nodes = len(group.lab.nodes) // ranks_per_node
    shard = count // ranks_per_node
    terms = {}
    if ranks_per_node > 1:
        terms["7: reduce-scatter"] = _seconds_within(group, "reduce_scatter", 4 * count)
    k = max(1, round(density * shard))
    terms["8: selection"] = max(group.call("selection", _TIMEOUT, count=shard, k=k, repeats=5))
    cost = LinearCost(**group.call("costs_between_nodes", _TIMEOUT)[0]["all_gather"])
    terms["9: all-gather between nodes"] = cost.seconds(nodes * coded)
    if ranks_per_node > 1:
        terms["10: all-gather"] = _seconds_within(group, "all_gather", 4 * count)
    return terms


def _seconds_within(group: Group, phase: str, nbytes: int) -> float:
    """What a collective of this size takes within the nodes: the slowest rank, the median round."""
    rounds = []
    for _ in range(_ROUNDS):
        answers = group.call("seconds_within_nodes", _TIMEOUT, phase=phase, nbytes=nbytes)
        rounds.append(max(answers))
    return statistics.median(rounds)


def _print(
    rows: list[Row],
    nodes: int,
    ranks_per_node: int,
    count: int,
    density: float,
    tell: Callable[[str], None],
) -> None:
    pairs = (nodes - 1) * _PAIR_BYTES * density * count
    first = rows[0].exchange
    header = [
        "sum",
        "step ms",
        "exchange ms",
        f"{rows[0].name} / this",
        "sent by a node",
        "of (m-1) 8 k",
        "of Eqs. 7-10",
    ]
    text = []
    for row in rows:
        predicted = None if row.predicted is None else sum(row.predicted.values())
        text.append(
            [
                row.name,
                f"{row.seconds * 1e3:.1f}",
                f"{row.exchange * 1e3:.1f}",
                f"{first / row.exchange:.2f}",
                f"{row.sent / 1e6:.3f} MB",
                f"{row.sent / pairs:.3f}",
                "-" if predicted is None else f"{row.exchange / predicted:.3f}",
            ]
        )
    tell(f"{nodes} nodes x {ranks_per_node} ranks, {count} elements, density {density:g}")
    tell(report.table(header, text))
    for row in rows:
        if row.predicted is not None:
            terms = "; ".join(f"{name} {s * 1e3:.1f} ms" for name, s in row.predicted.items())
            took = "; ".join(f"{name} {s * 1e3:.1f} ms" for name, s in row.phases.items())
            tell(f"{row.name}: equations {terms}. Took: {took}.")
