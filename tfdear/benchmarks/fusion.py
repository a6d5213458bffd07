# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""All planners of tensor fusion on one workload: a replay, as `tfdear benchmark replay` makes it.

Planners that search run first, one trial after the other, each told its step time as in training.
Then the final plans of all planners take turns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tfdear import fusion
from tfdear.benchmarks import link, peers, replay
from tfdear.benchmarks.group import Group
from tfdear.benchmarks.settings import Settings
from tfdear.benchmarks.table import table_of
from tfdear.fusion.planner import SearchingPlanner, make_plan
from tfdear.planning import schedules
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.trace import Trace

# A search has arrived when a trial is this close to the best size that was tried.
_CLOSE = 1.05
_MOST_TRIALS = 100


@dataclasses.dataclass
class Result:
    """A planner with a schedule; times in seconds."""

    schedule: str
    planner: str  # As it was written.
    plan: schedules.Plan  # The final one.
    predicted: float  # Modelled iteration time of that plan.
    trials: list[tuple[int, float]]  # Bucket bytes and step time, if it searches.
    seconds: list[float] = dataclasses.field(default_factory=list)  # Measured iterations.


def measure(
    settings: Settings,
    *,
    trace: Trace,
    ratio: float,
    names: Sequence[str],
    planners: Sequence[str],
) -> dict[str, Any]:
    """Measures the plan of every planner for a trace and prints a table.

    The trace's times are scaled so that communication over computation is `ratio`. Returns what the
    JSON file holds.
    """
    with contextlib.ExitStack() as stack:
        group = peers.open_tfdear(stack, settings)
        costs = link.measure(group)
        communication = costs.all_reduce.seconds(trace.bytes)
        trace = replay.scale(trace, communication / ratio)
        results = [
            _prepare(group, trace, costs, schedule, planner)
            for schedule in names
            for planner in planners
        ]
        for _ in range(settings.repeats):
            for result in results:
                result.seconds += replay.iterate(group, trace, result.plan, settings.iterations)
    settings.tell(
        f"{trace.name}: {len(trace.layers)} tensors, {trace.bytes / 1e6:.1f} MB, communication / "
        f"computation = {ratio:g}"
    )
    _print(results, settings.tell)
    return {
        "benchmark": "fusion",
        "trace": trace.name,
        "ratio": ratio,
        "ranks": len(settings.lab.nodes),
        "rate_bits_per_second": settings.lab.bits_per_second,
        "costs": dataclasses.asdict(costs),
        "computation": trace.forward + trace.backward,
        "communication": communication,
        "results": [
            {
                "schedule": result.schedule,
                "planner": result.planner,
                "buckets": len(result.plan.buckets),
                "steps": len(result.plan.steps),
                "predicted": result.predicted,
                "trials": result.trials,
                "seconds": result.seconds,
                "median": statistics.median(result.seconds),
            }
            for result in results
        ],
    }


def _prepare(
    group: Group, trace: Trace, costs: CommunicationCosts, schedule: str, name: str
) -> Result:
    planner = fusion.parse(name)
    trials: list[tuple[int, float]] = []
    if isinstance(planner, SearchingPlanner):
        while not planner.done and len(trials) < _MOST_TRIALS:
            plan = make_plan(planner, schedule, trace, costs)
            times = replay.iterate(group, trace, plan, planner.steps_per_trial)
            largest = max(sum(trace.layers[i].bytes for i in b) for b in plan.buckets)
            trials.append((getattr(planner, "bytes", largest), statistics.fmean(times)))
            planner.observe(trials[-1][1])
    plan = make_plan(planner, schedule, trace, costs)
    predicted = schedules.execute(plan, trace, costs).iteration_time
    return Result(schedule, name, plan, predicted, trials)


def _print(results: Sequence[Result], tell: Callable[[str], None]) -> None:
    rows = []
    for result in results:
        others = [other for other in results if other.schedule == result.schedule]
        fastest = min(statistics.median(other.seconds) for other in others)
        search = ""
        if result.trials:
            near = _CLOSE * min(time for other in others for _, time in other.trials)
            arrived = (n for n, (_, time) in enumerate(result.trials, 1) if time <= near)
            search = f"{next(arrived, 'never')} of {len(result.trials)}"
        median = statistics.median(result.seconds)
        rows.append(
            [
                ("schedule", result.schedule),
                ("planner", result.planner),
                ("buckets", str(len(result.plan.buckets))),
                ("measured s", f"{median:.4f}"),
                ("of the fastest", f"{median / fastest:.3f}"),
                ("predicted s", f"{result.predicted:.4f}"),
                ("trials to 5 %", search),
            ]
        )
    tell(table_of(rows))
