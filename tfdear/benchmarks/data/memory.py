# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a cache takes of a node's memory, whose ranks share it."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable

from tfdear.benchmarks import lab as netlab
from tfdear.benchmarks.data.figures import Figure, Findings
from tfdear.benchmarks.group import Group

_OPEN_SECONDS = 300.0
_READ_SECONDS = 600.0
_RANKS = 4
_MARGIN = 16 << 20
_KINDS = ("DataCache", "cache()")
# What a pipeline without a cache has read before: code, threads and batches are no cache's.
_BEFORE = 2048


def measure(
    findings: Findings,
    tell: Callable[[str], None],
    *,
    nbytes: int,
    cached_bytes: int,
    batch_size: int,
    repeats: int,
) -> None:
    """Four ranks of a node read epochs; their memory beyond what it was before, shared parts once.

    Args:
        findings: Gets what was found.
        tell: Prints a line.
        nbytes: Of an example.
        cached_bytes: Of all examples.
        batch_size: Examples of a batch of a rank.
        repeats: Turns, of which the median counts.
    """
    count = cached_bytes // nbytes
    case = f"memory, {_RANKS} ranks, {count * nbytes / 1e6:.0f} MB"
    taken: dict[str, list[int]] = {}
    for kind in _KINDS:
        taken[kind] = []
        for _ in range(repeats):
            with (
                netlab.temporary(1, None) as lab,
                Group("with_pipelines", sys.executable, lab.with_ranks(_RANKS)) as group,
            ):
                group.call("join", _OPEN_SECONDS)
                _read(group, "plain", "before", _BEFORE, nbytes, batch_size)
                group.call("close", _OPEN_SECONDS, names=["before"])
                before = sum(group.call("memory", _OPEN_SECONDS))
                _read(group, kind, "all", count, nbytes, batch_size)
                taken[kind].append(sum(group.call("memory", _OPEN_SECONDS)) - before)
        median = statistics.median(taken[kind])
        tell(f"{case}: {kind} takes {median / 1e6:.1f} MB, {median / (count * nbytes):.3f} D")
    findings.rows.append({"case": case, "bytes": count * nbytes, "taken": taken})
    bound = 1.05 * count * nbytes + _MARGIN
    ratio = statistics.median(taken["DataCache"]) / bound
    findings.figures.append(Figure(case, "taken / (1.05 D + 16 MiB)", ratio, 1.0, False))


def _read(group: Group, kind: str, name: str, count: int, nbytes: int, batch_size: int) -> None:
    """Reads two epochs."""
    shape = {"name": name, "count": count, "nbytes": nbytes, "batch_size": batch_size}
    if kind == "DataCache":
        group.call("open_cache", _OPEN_SECONDS, **shape)
    else:
        group.call("open_pipeline", _OPEN_SECONDS, kind=kind, **shape)
    for _ in range(2):
        group.call("epochs", _READ_SECONDS, name=name)
