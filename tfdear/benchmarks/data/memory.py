# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a cache takes of the memory of nodes, whose ranks share it."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence

from tfdear.benchmarks import lab as netlab
from tfdear.benchmarks.data.figures import Figure, Findings
from tfdear.benchmarks.group import Group

_OPEN_SECONDS = 300.0
_READ_SECONDS = 600.0
_RANKS = 4
_MARGIN = 16 << 20
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
    """Four ranks read epochs; their nodes' memory beyond what it was before, shared parts once.

    Args:
        findings: Gets what was found.
        tell: Prints a line.
        nbytes: Of an example.
        cached_bytes: Of all examples.
        batch_size: Examples of a batch of a rank.
        repeats: Turns, of which the median counts.
    """
    count = cached_bytes // nbytes
    for nodes, kind in ((1, "DataCache"), (1, "cache()"), (2, "DataCache")):
        # Of the examples; every process has all in a cache() of its own.
        on_node = count * nbytes // nodes
        node = "a node" if nodes == 1 else f"each of {nodes} nodes"
        case = f"memory of {node}, {_RANKS} ranks, {count * nbytes / 1e6:.0f} MB"
        taken = []
        for _ in range(repeats):
            with (
                netlab.temporary(nodes, None) as lab,
                Group("with_pipelines", sys.executable, lab.with_ranks(_RANKS // nodes)) as group,
            ):
                group.call("join", _OPEN_SECONDS)
                _read(group, "plain", "before", _BEFORE, nbytes, batch_size)
                group.call("close", _OPEN_SECONDS, names=["before"])
                before = group.call("memory", _OPEN_SECONDS)
                _read(group, kind, "all", count, nbytes, batch_size)
                after = group.call("memory", _OPEN_SECONDS)
                more = [late - early for late, early in zip(after, before, strict=True)]
                taken.append(max(_of_nodes(more, nodes)))
        median = statistics.median(taken)
        tell(f"{case}: {kind} takes {median / 1e6:.1f} MB, {median / on_node:.3f} of its examples")
        findings.rows.append({"case": case, "pipeline": kind, "bytes": on_node, "taken": taken})
        if kind == "DataCache":
            ratio = median / (1.05 * on_node + _MARGIN)
            figure = "taken / (1.05 of its examples + 16 MiB)"
            findings.figures.append(Figure(case, figure, ratio, 1.0, False))


def _of_nodes(of_ranks: Sequence[int], nodes: int) -> list[int]:
    """The sums over the ranks of each node, which follow one another."""
    each = len(of_ranks) // nodes
    return [sum(of_ranks[begin : begin + each]) for begin in range(0, len(of_ranks), each)]


def _read(group: Group, kind: str, name: str, count: int, nbytes: int, batch_size: int) -> None:
    """Reads two epochs."""
    shape = {"name": name, "count": count, "nbytes": nbytes, "batch_size": batch_size}
    if kind == "DataCache":
        group.call("open_cache", _OPEN_SECONDS, **shape)
    else:
        group.call("open_pipeline", _OPEN_SECONDS, kind=kind, **shape)
    for _ in range(2):
        group.call("epochs", _READ_SECONDS, name=name)
