# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A slow source, observed: bytes and time of first and later epochs, and how long steps wait."""

from __future__ import annotations

import contextlib
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from tfdear.benchmarks import lab as netlab
from tfdear.benchmarks.data.figures import Figure, Findings, median_ratio
from tfdear.benchmarks.group import Group
from tfdear.benchmarks.observed_files import ObservedFiles
from tfdear.benchmarks.table import table_of

_OPEN_SECONDS = 300.0
_READ_SECONDS = 600.0
_FILES = 8
_OURS, _PLAIN, _CACHE = "DataCache", "plain", "cache()"


def measure(
    findings: Findings,
    tell: Callable[[str], None],
    *,
    ranks: int,
    source_rate: str,
    source_bytes: int,
    nbytes: int,
    batch_size: int,
    repeats: int,
) -> None:
    """Ranks of a job, one on each node, read files whose bytes are counted and come at a rate.

    Args:
        findings: Gets what was found.
        tell: Prints a line.
        ranks: On as many nodes; the network is not shaped.
        source_rate: What the source gives to all ranks together.
        source_bytes: Of all examples.
        nbytes: Of an example.
        batch_size: Examples of a batch of a rank.
        repeats: Turns, of which the median counts.
    """
    count = max(ranks * batch_size, source_bytes // nbytes)
    rate = netlab.parse_rate(source_rate) / 8
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tfdear-")))
        observed = stack.enter_context(ObservedFiles(folder))
        lab = stack.enter_context(netlab.temporary(ranks, None))
        group = stack.enter_context(Group("with_pipelines", sys.executable, lab))
        group.call("join", _OPEN_SECONDS)
        written = {"folder": str(folder), "files": _FILES, "count": count, "nbytes": nbytes}
        group.call("write_records", _OPEN_SECONDS, **written)
        total = sum(path.stat().st_size for path in folder.iterdir())
        files = str(observed.path / "*.tfrecord")
        shape = {"nbytes": nbytes, "batch_size": batch_size, "files": files}

        def read(name: str, step: float = 0.0, opens: bool = False) -> dict[str, Any]:
            """Reads an epoch; to open the pipeline, listing included, may belong to it."""
            observed.reset()
            opened = _open(group, name, shape) if opens else 0.0
            answers = group.call("epochs", _READ_SECONDS, name=name, step=step)
            return {
                "opened": opened,
                "seconds": max(answer["seconds"] for answer in answers),
                "waited": max(answer["waited"] for answer in answers),
                "steps": answers[0]["steps"],
                "bytes": observed.counts().bytes / total,
            }

        # What only the first call of some code takes is no time of the source's.
        for name in (_OURS, _PLAIN, _CACHE):
            _open(group, name, shape)
            group.call("epochs", _READ_SECONDS, name=name)
            group.call("close", _OPEN_SECONDS, names=[name])
        observed.throttle(rate)
        firsts: dict[str, list[dict[str, Any]]] = {_OURS: [], _CACHE: [], _PLAIN: []}
        for turn in range(repeats):
            for name, each in firsts.items():
                each.append(read(name, opens=True))
                if turn < repeats - 1:
                    group.call("close", _OPEN_SECONDS, names=[name])
        # Half of what the plain pipeline takes to read: so long it waits in the other half.
        plain = statistics.median(first["seconds"] for first in firsts[_PLAIN])
        step = plain / 2 / firsts[_PLAIN][0]["steps"]
        laters: dict[str, list[dict[str, Any]]] = {name: [] for name in firsts}
        for _ in range(repeats):
            for name, each in laters.items():
                each.append(read(name, step))
    case = f"source, {ranks} ranks, {source_rate}"
    findings.rows.append(
        {"case": case, "bytes": total, "step": step, "first": firsts, "later": laters}
    )
    _tell(tell, case, firsts, laters)
    first_ratio = _median(firsts[_OURS], "seconds") * rate / total
    slower = [turn["seconds"] for turn in laters[_PLAIN]], [t["seconds"] for t in laters[_OURS]]
    waited = _median(laters[_OURS], "waited") / _median(laters[_PLAIN], "waited")
    half = _median(laters[_PLAIN], "waited") / _median(laters[_PLAIN], "seconds")
    findings.figures += [
        Figure(case, "first epoch / (D / rate)", first_ratio, 1.1, False),
        Figure(case, "bytes of the first epoch / D", _most(firsts[_OURS]), 1.01, False),
        Figure(case, "bytes of later epochs / D", _most(laters[_OURS]), 0.0, False),
        Figure(case, "waiting / that of the plain pipeline", waited, 0.1, False),
        Figure(
            case,
            f"times as fast, where the plain one waits {half:.0%}",
            median_ratio(*slower),
            1.9,
        ),
    ]


def _open(group: Group, name: str, shape: dict[str, Any]) -> float:
    """Opens a pipeline; returns how long that took."""
    if name == _OURS:
        return max(group.call("open_cache", _OPEN_SECONDS, name=name, **shape))
    return max(group.call("open_pipeline", _OPEN_SECONDS, name=name, kind=name, **shape))


def _median(turns: list[dict[str, Any]], name: str) -> float:
    return statistics.median(turn[name] for turn in turns)


def _most(turns: list[dict[str, Any]]) -> float:
    return max(turn["bytes"] for turn in turns)


def _tell(
    tell: Callable[[str], None],
    case: str,
    firsts: dict[str, list[dict[str, Any]]],
    laters: dict[str, list[dict[str, Any]]],
) -> None:
    rows = [
        [
            (case, name),
            ("opened in s", f"{_median(firsts[name], 'opened'):.2f}"),
            ("first epoch s", f"{_median(firsts[name], 'seconds'):.2f}"),
            ("bytes / D", f"{_median(firsts[name], 'bytes'):.3f}"),
            ("later epochs s", f"{_median(laters[name], 'seconds'):.2f}"),
            ("bytes / D then", f"{_median(laters[name], 'bytes'):.3f}"),
            ("waiting s", f"{_median(laters[name], 'waited'):.3f}"),
        ]
        for name in firsts
    ]
    tell(table_of(rows))
