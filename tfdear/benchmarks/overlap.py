# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Training of a real model, by tfdear's schedules and by other frameworks, in turns.

Every framework has its processes up all the time; while one trains the others only wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tfdear.benchmarks import peers as peers_module
from tfdear.benchmarks import report
from tfdear.benchmarks.group import BenchmarkError, Group
from tfdear.benchmarks.lab import Lab
from tfdear.benchmarks.settings import Settings
from tfdear.benchmarks.table import table_of

_BUILD_SECONDS = 300.0
_TURN_SECONDS = 600.0
# Retracing, first buffers, measurements for plans.
_WARM_UP_STEPS = 8
# Steps of every turn that are not timed: FIRST_STEPS of ranks/keras_models.py.
_FIRST_STEPS = 2


@dataclasses.dataclass
class Case:
    """A framework, as it trains; times in seconds per step."""

    name: str
    gradient_bytes: int
    together: list[float] = dataclasses.field(default_factory=list)
    alone: list[float] = dataclasses.field(default_factory=list)
    wire: list[float] = dataclasses.field(default_factory=list)


def measure(
    settings: Settings,
    *,
    peers: Sequence[peers_module.Peer],
    model: str,
    batch_size: int,
    configurations: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """Trains one model with every framework that is installed and prints a table.

    An iteration of the settings is a step; `batch_size` is that of a rank; `configurations` are
    schedules of tfdear, each with a planner, and `peers` the other frameworks. Returns what the
    JSON file holds.
    """
    lab, tell = settings.lab, settings.tell
    turns: list[tuple[Case, Group]] = []
    with contextlib.ExitStack() as stack:
        arguments: dict[str, Any] = {"model": model, "batch_size": batch_size}
        for (schedule, planner), tcp in itertools.product(configurations, (False, True)):
            if tcp and not lab.is_one_node:
                continue
            group = peers_module.open_tfdear(stack, settings, shared_memory=not tcp)
            nbytes = group.call(
                "build", _BUILD_SECONDS, schedule=schedule, fusion=planner, **arguments
            )[0]
            name = f"tfdear {schedule}, {planner}" + (", without shared memory" if tcp else "")
            turns.append((Case(name, nbytes), group))
        for peer in peers:
            foreign = peer.open(stack, settings)
            if foreign is None:
                continue
            try:
                nbytes = foreign.call("build", _BUILD_SECONDS, **arguments)[0]
                turns.append((Case(peer.name, nbytes), foreign))
            except BenchmarkError as error:
                tell(f"{peer.name}: cannot build {model}: {error}")
        for case, group in turns:
            for mode in ("alone", "together"):
                group.call("train", _TURN_SECONDS, mode=mode, steps=_WARM_UP_STEPS)
            tell(f"{case.name}: {case.gradient_bytes / 1e6:.1f} MB of gradients, warm")
        for _ in range(settings.repeats):
            for case, group in turns:
                _take_turn(lab, group, case, settings.iterations)
        descriptions = {case.name: group.description for case, group in turns}
    cases = [case for case, _ in turns]
    _print(lab, cases, tell)
    return {
        "benchmark": "overlap",
        "model": model,
        "batch_size": batch_size,
        "ranks": len(lab.nodes),
        "nodes": len({*lab.nodes}),
        "rate_bits_per_second": lab.bits_per_second,
        "frameworks": descriptions,
        "cases": [dataclasses.asdict(case) for case in cases],
    }


def _take_turn(lab: Lab, group: Group, case: Case, steps: int) -> None:
    world_size = len(lab.nodes)
    case.alone.append(max(group.call("train", _TURN_SECONDS, mode="alone", steps=steps)))
    before = lab.bytes_sent()
    case.together.append(max(group.call("train", _TURN_SECONDS, mode="together", steps=steps)))
    sent = lab.most_sent_since(before)
    if lab.is_one_node:
        return  # Nothing is sent to other nodes.
    least = 2 * (world_size - 1) / world_size * case.gradient_bytes
    case.wire.append(sent / (least * (_FIRST_STEPS + steps)))


def _print(lab: Lab, cases: Sequence[Case], tell: Callable[[str], None]) -> None:
    world_size = len(lab.nodes)
    ours = min(
        (case for case in cases if case.name.startswith("tfdear")),
        key=lambda case: statistics.median(case.together),
    )
    fastest = statistics.median(ours.together)
    rows = []
    for case in cases:
        together, alone = statistics.median(case.together), statistics.median(case.alone)
        row = [
            ("framework", case.name),
            ("step s", f"{together:.3f}"),
            ("slowest", f"{max(case.together):.3f}"),
            ("alone s", f"{alone:.3f}"),
            ("step / alone", f"{together / alone:.3f}"),
            ("tfdear / this", f"{fastest / together:.3f}"),
        ]
        if case.wire:
            row.append(("wire", f"{statistics.median(case.wire):.3f}"))
        if lab.bits_per_second:
            rate = report.PAYLOAD_SHARE * lab.bits_per_second / 8
            communication = 2 * (world_size - 1) / world_size * case.gradient_bytes / rate
            row.append(("line s", f"{communication:.3f}"))
            row.append(("limit / step", f"{max(alone, communication) / together:.3f}"))
        rows.append(row)
    tell(table_of(rows))
