# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Examples that are in other nodes' memories: how much of the line they take."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tfdear.benchmarks import lab as netlab
from tfdear.benchmarks.data.figures import Figure, Findings
from tfdear.benchmarks.group import Group
from tfdear.benchmarks.report import PAYLOAD_SHARE
from tfdear.benchmarks.table import table_of

_OPEN_SECONDS = 300.0
_READ_SECONDS = 600.0
_OURS, _SERVICE = "DataCache", "tf.data service"


def measure(
    findings: Findings,
    tell: Callable[[str], None],
    *,
    nodes: int,
    rate: str | None,
    nbytes: int,
    cached_bytes: int,
    batch_size: int,
    repeats: int,
) -> None:
    """One rank on each node, and a worker of tf.data service; both read epochs in turns.

    Args:
        findings: Gets what was found.
        tell: Prints a line.
        nodes: Of the lab.
        rate: What each may send; None: as fast as the machine can.
        nbytes: Of an example.
        cached_bytes: Of all examples.
        batch_size: Examples of a batch of a rank.
        repeats: Turns, of which the median counts.
    """
    count = max(nodes * batch_size, cached_bytes // nbytes)
    shape = {"count": count, "nbytes": nbytes, "batch_size": batch_size}
    with (
        netlab.temporary(nodes, rate) as lab,
        Group("with_pipelines", sys.executable, lab) as ours,
        Group("data_service", sys.executable, lab) as workers,
        Group("with_pipelines", sys.executable, lab) as readers,
    ):
        ours.call("join", _OPEN_SECONDS)
        ours.call("open_cache", _OPEN_SECONDS, name=_OURS, **shape)
        readers.call(
            "open_service", _OPEN_SECONDS, name=_SERVICE, address=workers.description, **shape
        )
        for group, name in ((ours, _OURS), (readers, _SERVICE)):
            group.call("epochs", _READ_SECONDS, name=name)
        crossing, sent = _exact(lab, ours, count, nbytes)
        turns: dict[str, list[dict[str, Any]]] = {_OURS: [], _SERVICE: []}
        for _ in range(repeats):
            for group, name in ((ours, _OURS), (readers, _SERVICE)):
                turns[name].append(_turn(lab, group, name))
    case = f"remote, {nodes} nodes, {rate or 'not shaped'}"
    # What a node has to take from others, at the rate of its link or that of the slowest rank.
    taken = [crossing / nodes / turn["seconds"] for turn in turns[_OURS]]
    row = {"case": case, "nodes": nodes, "rate": rate, "crossing": crossing, "sent": sent}
    findings.rows.append({**row, "taken": taken, "turns": turns})
    _tell(tell, case, turns)
    ratios = [
        one["rows_per_second"] / other["rows_per_second"]
        for one, other in zip(turns[_OURS], turns[_SERVICE], strict=True)
    ]
    figures = findings.figures
    if rate is not None:
        limit = PAYLOAD_SHARE * netlab.parse_rate(rate) / 8
        share = statistics.median(taken) / limit
        figures.append(Figure(case, "taken from others / 0.956 of the line", share, 0.9))
        figures.append(Figure(case, "sent / what must cross", sent / crossing, 1.02, False))
    ratio = statistics.median(ratios)
    least = 1.5 if rate is None else 1.0
    figures.append(Figure(case, "DataCache / tf.data service", ratio, least))


def _exact(lab: netlab.Lab, group: Group, count: int, nbytes: int) -> tuple[int, int]:
    """The bytes of examples that an epoch's order sends to other nodes, and those that were sent.

    Rank r of P owns examples from r N / P to (r + 1) N / P.
    """
    before = lab.bytes_sent()
    orders: Sequence[Sequence[int]] = group.call("numbers", _READ_SECONDS, name=_OURS)
    sent = sum(after - was for was, after in zip(before, lab.bytes_sent(), strict=True))
    size = len(orders)
    foreign = sum(
        not rank * count // size <= number < (rank + 1) * count // size
        for rank, numbers in enumerate(orders)
        for number in numbers
    )
    assert sorted(number for numbers in orders for number in numbers) == list(range(count))
    return foreign * nbytes, sent


def _turn(lab: netlab.Lab, group: Group, name: str) -> dict[str, Any]:
    before = lab.bytes_sent()
    answers = group.call("epochs", _READ_SECONDS, name=name)
    sent = sum(after - was for was, after in zip(before, lab.bytes_sent(), strict=True))
    # Of tf.data service, what it takes until there is a first batch is not counted.
    rows = "rows" if name == _OURS else "steady_rows"
    seconds = max(a["seconds" if name == _OURS else "steady_seconds"] for a in answers)
    read = sum(answer[rows] for answer in answers)
    return {
        "seconds": seconds,
        "rows_per_second": read / seconds,
        "sent_per_row": sent / sum(answer["rows"] for answer in answers),
        "waited": [answer["waited"] for answer in answers],
    }


def _tell(tell: Callable[[str], None], case: str, turns: dict[str, list[dict[str, Any]]]) -> None:
    tell(
        table_of(
            [
                [
                    (case, name),
                    ("examples/s", f"{_median(each, 'rows_per_second'):.0f}"),
                    ("slowest", f"{min(turn['rows_per_second'] for turn in each):.0f}"),
                    ("bytes sent per example", f"{_median(each, 'sent_per_row'):.0f}"),
                    ("MB/s on the line", f"{_line(each) / 1e6:.0f}"),
                ]
                for name, each in turns.items()
            ]
        )
    )


def _median(turns: Sequence[dict[str, Any]], name: str) -> float:
    return statistics.median(turn[name] for turn in turns)


def _line(turns: Sequence[dict[str, Any]]) -> float:
    return statistics.median(turn["rows_per_second"] * turn["sent_per_row"] for turn in turns)
