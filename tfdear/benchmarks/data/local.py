# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Examples that are in this node's memory: batches per second of one core, and of two ranks."""

from __future__ import annotations

import contextlib
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tfdear.benchmarks import lab as netlab
from tfdear.benchmarks.data.figures import Figure, Findings, median_ratio
from tfdear.benchmarks.group import BenchmarkError, Group
from tfdear.benchmarks.table import table_of

_OPEN_SECONDS = 300.0
_READ_SECONDS = 300.0
# A turn reads whole epochs for so long.
_TURN_SECONDS = 0.5
_OURS, _EXAMPLES, _CACHE, _SHUFFLE, _GENERATOR = (
    "DataCache",
    "DataCache.examples().batch",
    "cache().batch",
    "cache().shuffle(N).batch",
    "from_generator.batch",
)
_Rates: TypeAlias = dict[str, list[float]]
# What has to be so many times as fast as another, at least; also for large examples?
_Limit: TypeAlias = tuple[str, str, float, bool]
_LIMITS: tuple[_Limit, ...] = (
    (_OURS, _CACHE, 0.95, True),
    (_OURS, _SHUFFLE, 1.5, False),
    (_OURS, _GENERATOR, 10.0, True),
    (_EXAMPLES, _CACHE, 0.95, True),
)
# Two processes with a cache each.
_PAIR_LIMITS: tuple[_Limit, ...] = ((_OURS, _CACHE, 0.95, True),)
_LARGE = 100_000


def measure(
    findings: Findings,
    tell: Callable[[str], None],
    *,
    sizes: Sequence[int],
    cached_bytes: int,
    batch_size: int,
    repeats: int,
    grain_python: str | None,
) -> None:
    """One process on one core, then two on two cores.

    Args:
        findings: Gets what was found.
        tell: Prints a line.
        sizes: Bytes of an example.
        cached_bytes: Of all examples.
        batch_size: Examples of a batch of a process.
        repeats: Turns, of which the median counts.
        grain_python: A Python that has Grain and ArrayRecord; None: there is none.
    """
    with netlab.temporary(1, None) as lab, contextlib.ExitStack() as stack:
        single = stack.enter_context(Group("with_pipelines", sys.executable, lab))
        tell(f"one process: {single.description}")
        groups = {kind: single for kind in (_OURS, _EXAMPLES, _CACHE, _SHUFFLE, _GENERATOR)}
        if grain := _grain(stack, lab, grain_python, tell):
            groups |= {"Grain": grain, "Grain, shuffled": grain}
        for nbytes in sizes:
            count = max(batch_size, cached_bytes // nbytes)
            shape = {"nbytes": nbytes, "batch_size": batch_size}
            _open(single, count, shape)
            for name, kind in (("Grain", "plain"), ("Grain, shuffled", "shuffle")):
                if name in groups:
                    groups[name].call(
                        "open_pipeline", _OPEN_SECONDS, name=name, kind=kind, count=count, **shape
                    )
            turns = _turns(groups, repeats)
            _note(findings, tell, f"local, {nbytes / 1000:g} KB", nbytes, turns, _LIMITS)
            for group in dict.fromkeys(groups.values()):
                names = [name for name, of in groups.items() if of is group]
                group.call("close", _OPEN_SECONDS, names=names)
    with netlab.temporary(1, None) as lab, contextlib.ExitStack() as stack:
        pair = stack.enter_context(Group("with_pipelines", sys.executable, lab.with_ranks(2)))
        pair.call("join", _OPEN_SECONDS)
        for nbytes in sizes:
            count = max(2 * batch_size, cached_bytes // nbytes)
            shape = {"nbytes": nbytes, "batch_size": batch_size, "count": count}
            pair.call("open_cache", _OPEN_SECONDS, name=_OURS, **shape)
            pair.call("open_pipeline", _OPEN_SECONDS, name=_CACHE, kind="cache()", **shape)
            groups = {_OURS: pair, _CACHE: pair}
            turns = _turns(groups, repeats)
            _note(findings, tell, f"two ranks, {nbytes / 1000:g} KB", nbytes, turns, _PAIR_LIMITS)
            pair.call("close", _OPEN_SECONDS, names=list(groups))


def _grain(
    stack: contextlib.ExitStack,
    lab: netlab.Lab,
    python: str | None,
    tell: Callable[[str], None],
) -> Group | None:
    if python is None:
        tell("Grain: not there (--grain-python names no Python)")
        return None
    try:
        group = stack.enter_context(Group("with_grain", python, lab))
    except (BenchmarkError, OSError) as error:
        tell(f"Grain: not there; {python} cannot run it: {error}")
        return None
    tell(f"Grain: {group.description}")
    return group


def _open(group: Group, count: int, shape: dict[str, int]) -> None:
    group.call("open_cache", _OPEN_SECONDS, name=_OURS, count=count, **shape)
    batch_size = shape["batch_size"]
    group.call("open_examples", _OPEN_SECONDS, name=_EXAMPLES, cache=_OURS, batch_size=batch_size)
    kinds = {_CACHE: "cache()", _SHUFFLE: "cache().shuffle", _GENERATOR: "from_generator"}
    for name, kind in kinds.items():
        group.call("open_pipeline", _OPEN_SECONDS, name=name, kind=kind, count=count, **shape)


def _turns(groups: dict[str, Group], repeats: int) -> tuple[_Rates, _Rates]:
    """Examples per second, and per second of a processor, of all processes of a group, by turns.

    A turn before them fills the caches.
    """
    rates: _Rates = {name: [] for name in groups}
    of_cpu: _Rates = {name: [] for name in groups}
    for turn in range(repeats + 1):
        for name, group in groups.items():
            seconds = _TURN_SECONDS if turn else 0.0
            answers = group.call("epochs", _READ_SECONDS, name=name, seconds=seconds)
            if turn:
                rates[name].append(sum(answer["rows"] / answer["seconds"] for answer in answers))
                spent = sum(answer["cpu_seconds"] for answer in answers)
                of_cpu[name].append(sum(answer["rows"] for answer in answers) / spent)
    return rates, of_cpu


def _note(
    findings: Findings,
    tell: Callable[[str], None],
    case: str,
    nbytes: int,
    turns: tuple[_Rates, _Rates],
    limits: Sequence[_Limit],
) -> None:
    rates, of_cpu = turns
    findings.rows.append({"case": case, "nbytes": nbytes, "rates": rates, "cpu_rates": of_cpu})
    rows = [
        [
            (case, name),
            ("examples/s", f"{statistics.median(each):.0f}"),
            ("slowest", f"{min(each):.0f}"),
            ("of cache().batch", f"{median_ratio(each, rates[_CACHE]):.2f}"),
            ("per CPU s", f"{statistics.median(of_cpu[name]):.0f}"),
            ("of cache().batch", f"{median_ratio(of_cpu[name], of_cpu[_CACHE]):.2f}"),
        ]
        for name, each in rates.items()
    ]
    tell(table_of(rows))
    for ours, theirs, limit, also_large in limits:
        if nbytes < _LARGE or also_large:
            ratio = median_ratio(rates[ours], rates[theirs])
            findings.figures.append(Figure(case, f"{ours} / {theirs}", ratio, limit))
