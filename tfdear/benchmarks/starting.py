# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How large jobs start: seconds, bytes through rank 0, messages of a small sum. No TensorFlow.

Rank 0 is alone on its node, so that the counters of its link see what goes through it, whatever
the package says; all other ranks share another node. They are processes with the meeting, the
connections and the engine of tfdear, and connect as if each had a node of its own.
"""

from __future__ import annotations

import math
import secrets
import sys
import time
from collections.abc import Sequence
from typing import Any

from tfdear.benchmarks.group import Group
from tfdear.benchmarks.settings import Settings
from tfdear.benchmarks.table import table_of

_TIMEOUT = 300.0
_SUMS = 20
_PREDICTED = (1024, 4096)


def measure(settings: Settings, *, world_sizes: Sequence[int]) -> dict[str, Any]:
    """Starts jobs of these numbers of ranks, one after another, and prints a table.

    Returns what the JSON file holds.
    """
    jobs = [_start(settings, world_size) for world_size in world_sizes]
    settings.tell(table_of([_row(job) for job in jobs]))
    first, last = jobs[0], jobs[-1]
    if len(jobs) > 1:
        # What comes with each further rank, at the large end.
        before = jobs[-2]
        per_rank = (last["bytes"] - before["bytes"]) / (last["ranks"] - before["ranks"])
        settings.tell(
            f"Through rank 0, for each rank: {first['bytes'] / first['ranks'] / 1e3:.2f} KB of "
            f"{first['ranks']}, {last['bytes'] / last['ranks'] / 1e3:.2f} KB of {last['ranks']}"
        )
        for ranks in _PREDICTED:
            predicted = last["bytes"] + per_rank * (ranks - last["ranks"])
            settings.tell(f"{ranks} ranks, continued in a line: {predicted / 1e6:.1f} MB")
    return {"benchmark": "start", "jobs": jobs}


def _start(settings: Settings, world_size: int) -> dict[str, Any]:
    """One job, from the start of its first interpreter to its end."""
    lab = settings.lab
    begin = time.monotonic()
    variables = {"TFDEAR_SECRET": secrets.token_hex(32)}
    with Group("engine_ranks", sys.executable, lab, pin=False, variables=variables) as group:
        before = lab.nodes[0].bytes_sent() + lab.nodes[0].bytes_received()
        answers = group.call("run", _TIMEOUT, world_size=world_size, sums=_SUMS)
        after = lab.nodes[0].bytes_sent() + lab.nodes[0].bytes_received()
    ranks = [rank for node in answers for rank in node]
    return {
        "ranks": world_size,
        "meeting_seconds": max(rank["met"] for rank in ranks) - begin,
        "seconds": max(rank["ready"] for rank in ranks) - begin,
        "bytes": after - before,
        "messages": max(rank["messages"] for rank in ranks),
        "sum_seconds": max(rank["seconds"] for rank in ranks),
        "connections": max(rank["connections"] for rank in ranks),
    }


def _row(job: dict[str, Any]) -> list[tuple[str, str]]:
    ranks = job["ranks"]
    return [
        ("ranks", str(ranks)),
        ("met s", f"{job['meeting_seconds']:.2f}"),
        ("start s", f"{job['seconds']:.2f}"),
        ("rank 0 MB", f"{job['bytes'] / 1e6:.2f}"),
        ("KB a rank", f"{job['bytes'] / ranks / 1e3:.2f}"),
        ("connections", str(job["connections"])),
        ("messages a sum", f"{job['messages']:.2f}"),
        ("2 log2 P", f"{2 * math.log2(ranks):.2f}"),
        ("sum ms", f"{job['sum_seconds'] * 1e3:.2f}"),
    ]
