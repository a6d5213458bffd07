# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How fast collectives are: time, algorithm bandwidth, bus bandwidth, fraction of the line.

The words are those of nccl-tests: `algbw` is the size over the time; `busbw` is `algbw` times
2 (P - 1) / P for an all-reduce and (P - 1) / P for its halves, so that the perfect value is the
rate of a node's link for every number of ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tfdear.benchmarks import lab as netlab
from tfdear.benchmarks import report
from tfdear.benchmarks.group import Group
from tfdear.benchmarks.peers import Peer

COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce", "pair")
_MEASURE_SECONDS = 0.4
# Reduced before every measurement, so that a burst is over: _DRAIN_BYTES of the ranks.
_DRAIN_BYTES = 1 << 20
_MOST_REPEATS = 200
_TIMEOUT = 120.0


@dataclasses.dataclass
class Row:
    """One collective of one framework at one size; times in seconds per repeat."""

    framework: str
    collective: str
    nbytes: int
    seconds: list[float] = dataclasses.field(default_factory=list)
    wire: list[float] = dataclasses.field(default_factory=list)

    @property
    def median(self) -> float:
        """Median time of one collective, in seconds."""
        return statistics.median(self.seconds)

    def bus_bandwidth(self, world_size: int) -> float:
        """Bytes per second on the wire of each rank, as nccl-tests define it."""
        return _share(self.collective, world_size) * self.nbytes / self.median


def measure(
    lab: netlab.Lab,
    peers: Sequence[Peer],
    sizes: Sequence[int],
    repeats: int,
    pin: bool,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Runs the collectives of every framework that is there, in turns, and prints a table.

    Args:
        lab: Where the ranks run.
        peers: The frameworks, tfdear first.
        sizes: Sizes in bytes.
        repeats: Measurements of each, of which the median counts.
        pin: Whether every rank gets one core.
        tell: Prints a line.

    Returns:
        What the JSON file holds.
    """
    world_size = len(lab.nodes)
    rows: dict[tuple[str, str, int], Row] = {}
    with contextlib.ExitStack() as stack:
        groups: dict[str, Group] = {}
        for peer in peers:
            group = peer.open(stack, lab, pin, tell)
            if group is not None:
                groups[peer.name] = group
        for nbytes in sizes:
            for collective in COLLECTIVES:
                _measure_size(lab, groups, collective, nbytes, repeats, rows)
        descriptions = {name: group.description for name, group in groups.items()}
    line = lab.bits_per_second
    limit = None if line is None else report.PAYLOAD_SHARE * line / 8
    _print(rows, world_size, limit, tell)
    return {
        "benchmark": "collectives",
        "ranks": world_size,
        "rate_bits_per_second": line,
        "limit_bytes_per_second": limit,
        "frameworks": descriptions,
        "rows": [
            {
                **dataclasses.asdict(row),
                "median": row.median,
                "busbw": row.bus_bandwidth(world_size),
            }
            for row in rows.values()
        ],
    }


def _measure_size(
    lab: netlab.Lab,
    groups: dict[str, Group],
    collective: str,
    nbytes: int,
    repeats: int,
    rows: dict[tuple[str, str, int], Row],
) -> None:
    inner: dict[str, int] = {}
    for _ in range(repeats):
        for name, group in groups.items():
            if collective == "pair" and group.framework != "with_tfdear":
                continue  # The peers have no halves in place to put together.
            call = {"name": collective, "nbytes": nbytes}
            if name not in inner:
                first = max(group.call("collective", _TIMEOUT, repeats=2, **call))
                inner[name] = max(1, min(_MOST_REPEATS, int(_MEASURE_SECONDS / max(first, 1e-5))))
            before = [node.bytes_sent() for node in lab.nodes]
            answers = group.call("collective", _TIMEOUT, repeats=inner[name], **call)
            after = [node.bytes_sent() for node in lab.nodes]
            row = rows.setdefault((name, collective, nbytes), Row(name, collective, nbytes))
            # The slowest rank counts: the others waited for it.
            row.seconds.append(max(answers))
            sent = max(b - a for a, b in zip(before, after, strict=True))
            least = inner[name] * _share(collective, len(lab.nodes)) * nbytes
            row.wire.append(sent / (least + _share("all_reduce", len(lab.nodes)) * _DRAIN_BYTES))


def _share(collective: str, world_size: int) -> float:
    """Bytes that each rank must send, as a multiple of the size."""
    halves = 1 if collective in ("reduce_scatter", "all_gather") else 2
    return halves * (world_size - 1) / world_size


def _print(
    rows: dict[tuple[str, str, int], Row],
    world_size: int,
    limit: float | None,
    tell: Callable[[str], None],
) -> None:
    ordered = sorted(rows.values(), key=lambda row: (row.nbytes, COLLECTIVES.index(row.collective)))
    header = ["collective", "size", "framework", "time ms", "algbw MB/s", "busbw MB/s", "wire"]
    header.append("of line" if limit else "to tfdear")
    text = []
    for row in ordered:
        bandwidth = row.bus_bandwidth(world_size)
        if limit:
            relative = f"{bandwidth / limit:.3f}"
        else:
            ours = rows["tfdear", row.collective, row.nbytes].bus_bandwidth(world_size)
            relative = f"{bandwidth / ours:.2f}"
        text.append(
            [
                row.collective,
                report.size(row.nbytes),
                row.framework,
                f"{row.median * 1e3:.3f}",
                f"{row.nbytes / row.median / 1e6:.1f}",
                f"{bandwidth / 1e6:.1f}",
                f"{statistics.median(row.wire):.3f}",
                relative,
            ]
        )
    tell(report.table(header, text))
    for nbytes in sorted({row.nbytes for row in ordered}):
        pair = rows["tfdear", "pair", nbytes].median
        whole = rows["tfdear", "all_reduce", nbytes].median
        words = [f"{report.size(nbytes)}: the two halves take {pair / whole:.3f} of the all-reduce"]
        for row in ordered:
            if (row.collective, row.nbytes) == ("all_reduce", nbytes) and row.framework != "tfdear":
                words.append(f"{row.median / whole:.2f} times as fast as {row.framework}")
        tell("; ".join(words))
