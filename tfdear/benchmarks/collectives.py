# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How fast collectives are: time, algorithm bandwidth, bus bandwidth, fraction of the link's rate,
and the processor time that they take.

The terms are those of nccl-tests: `algbw` is the size over the time; `busbw` is `algbw` times
2 (P - 1) / P for an all-reduce and (P - 1) / P for its halves, so that the perfect value is the
rate of a node's link for every number of ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tfdear.benchmarks import report
from tfdear.benchmarks.group import Group
from tfdear.benchmarks.peers import Peer, open_all
from tfdear.benchmarks.settings import Settings
from tfdear.benchmarks.table import table_of

COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce", "pair")
_MEASURE_SECONDS = 0.4
# Reduced before every measurement, to use up the burst of a shaped link: _DRAIN_BYTES of the ranks.
_DRAIN_BYTES = 1 << 20
_MOST_REPEATS = 200
_TIMEOUT = 120.0


@dataclasses.dataclass
class Row:
    """One collective of one framework at one size; times in seconds per repeat.

    `processor`: seconds of processor time of all ranks for a GB that they send.
    """

    framework: str
    collective: str
    nbytes: int
    seconds: list[float] = dataclasses.field(default_factory=list)
    wire: list[float] = dataclasses.field(default_factory=list)
    processor: list[float] = dataclasses.field(default_factory=list)

    @property
    def median(self) -> float:
        """Median time of one collective, in seconds."""
        return statistics.median(self.seconds)

    def bus_bandwidth(self, world_size: int) -> float:
        """Bytes per second on the wire of each rank, as nccl-tests define it."""
        return _share(self.collective, world_size) * self.nbytes / self.median


def measure(settings: Settings, *, peers: Sequence[Peer], sizes: Sequence[int]) -> dict[str, Any]:
    """Runs the collectives of every framework that is installed, in turns, and prints a table.

    tfdear is the first of `peers`; `sizes` are in bytes. Returns what the JSON file holds.
    """
    world_size = len(settings.lab.nodes)
    rows: dict[tuple[str, str, int], Row] = {}
    with contextlib.ExitStack() as stack:
        groups = open_all(stack, settings, peers)
        for nbytes in sizes:
            for collective in COLLECTIVES:
                _measure_size(settings, groups, collective, nbytes, rows)
        descriptions = {name: group.description for name, group in groups.items()}
    rate = settings.lab.bits_per_second
    limit = None if rate is None else report.PAYLOAD_SHARE * rate / 8
    _print(rows, world_size, limit, settings.tell)
    return {
        "benchmark": "collectives",
        "ranks": world_size,
        "rate_bits_per_second": rate,
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
    settings: Settings,
    groups: dict[str, Group],
    collective: str,
    nbytes: int,
    rows: dict[tuple[str, str, int], Row],
) -> None:
    world_size = len(settings.lab.nodes)
    repeats: dict[str, int] = {}
    for _ in range(settings.repeats):
        for name, group in groups.items():
            if collective == "pair" and group.framework != "with_tfdear":
                continue  # The peers have no in-place halves to run one after the other.
            call = {"name": collective, "nbytes": nbytes}
            if name not in repeats:
                first = max(group.call("collective", _TIMEOUT, repeats=2, **call))
                repeats[name] = max(1, min(_MOST_REPEATS, int(_MEASURE_SECONDS / max(first, 1e-5))))
            before, processor = settings.lab.bytes_sent(), group.processor_seconds()
            answers = group.call("collective", _TIMEOUT, repeats=repeats[name], **call)
            processor = group.processor_seconds() - processor
            sent = settings.lab.most_sent_since(before)
            row = rows.setdefault((name, collective, nbytes), Row(name, collective, nbytes))
            # The slowest rank counts: the others waited for it.
            row.seconds.append(max(answers))
            least = repeats[name] * _share(collective, world_size) * nbytes
            least += _share("all_reduce", world_size) * _DRAIN_BYTES
            if not settings.lab.is_one_node:  # Nothing is sent to other nodes.
                row.wire.append(sent / least)
            row.processor.append(processor / (world_size * least * 1e-9))


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
    cells = []
    for row in ordered:
        bandwidth = row.bus_bandwidth(world_size)
        if limit:
            relative = ("of line", f"{bandwidth / limit:.3f}")
        else:
            ours = rows["tfdear", row.collective, row.nbytes].bus_bandwidth(world_size)
            relative = ("to tfdear", f"{bandwidth / ours:.2f}")
        cells.append(
            [
                ("collective", row.collective),
                ("size", report.size(row.nbytes)),
                ("framework", row.framework),
                ("time ms", f"{row.median * 1e3:.3f}"),
                ("algbw MB/s", f"{row.nbytes / row.median / 1e6:.1f}"),
                ("busbw MB/s", f"{bandwidth / 1e6:.1f}"),
                *([("wire", f"{statistics.median(row.wire):.3f}")] if row.wire else []),
                ("CPU s/GB", f"{statistics.median(row.processor):.2f}"),
                relative,
            ]
        )
    tell(table_of(cells))
    for nbytes in sorted({row.nbytes for row in ordered}):
        pair = rows["tfdear", "pair", nbytes].median
        whole = rows["tfdear", "all_reduce", nbytes].median
        parts = [f"{report.size(nbytes)}: the two halves take {pair / whole:.3f} of the all-reduce"]
        for row in ordered:
            if (row.collective, row.nbytes) == ("all_reduce", nbytes) and row.framework != "tfdear":
                parts.append(f"{row.median / whole:.2f} times as fast as {row.framework}")
        tell("; ".join(parts))
