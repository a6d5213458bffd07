# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Schedules and planners on a real link, with computation replaced by sleep.

Layers sleep as long as a trace says, and gradients of the trace's sizes go through the real engine
over the real link, as with an accelerator that leaves the processor to communication. An iteration
has the same work in all schedules; they take turns, so that a change of the machine's speed affects
all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from tfdear.base import names
from tfdear.benchmarks import link
from tfdear.benchmarks.group import Group
from tfdear.benchmarks.peers import Peer, open_all
from tfdear.benchmarks.settings import Settings
from tfdear.benchmarks.table import table_of
from tfdear.engine import plan as engine_plan
from tfdear.fusion.planner import Planner, make_plan
from tfdear.planning import schedules
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.trace import Trace

_TIMEOUT = 600.0


@dataclasses.dataclass
class Case:
    """One schedule with one planner at one ratio; times of iterations in seconds.

    `seconds` are by the clock of the sleeping device, `wall` are the same iterations by the real
    clock, which also counts the time until the processes of this machine notice their data.
    """

    ratio: float
    schedule: str
    planner: str
    buckets: int
    predicted: float | None
    seconds: list[float] = dataclasses.field(default_factory=list)
    wall: list[float] = dataclasses.field(default_factory=list)

    @property
    def median(self) -> float:
        """Median time of an iteration."""
        return statistics.median(self.seconds)

    @property
    def median_wall(self) -> float:
        """Median time of an iteration by the real clock."""
        return statistics.median(self.wall)


@dataclasses.dataclass(frozen=True)
class Bound:
    """The time that no schedule of halves can beat, and the communication that nothing can hide.

    All in seconds. `exposed` is the front bucket, or its first part if it is sent in parts: ready
    last and needed first, it is always exposed.
    """

    computation: float
    communication: float
    exposed: float

    @property
    def seconds(self) -> float:
        """Least time of an iteration."""
        return max(self.computation + self.exposed, self.communication)


def measure(
    settings: Settings,
    *,
    peers: Sequence[Peer],
    trace: Trace,
    ratios: Sequence[float],
    names: Sequence[str],
    planners: dict[str, Planner],
) -> dict[str, Any]:
    """Replays a trace with every schedule and planner and prints a table per ratio.

    tfdear is the first of `peers`. The trace's times are scaled so that communication over
    computation is each of `ratios`. Returns what the JSON file holds.
    """
    results = []
    with contextlib.ExitStack() as stack:
        groups = open_all(stack, settings, peers)
        costs = link.measure(groups["tfdear"])
        for name, cost in dataclasses.asdict(costs).items():
            settings.tell(
                f"{name}: a = {cost['a'] * 1e6:.0f} us, b = {cost['b'] * 1e9:.3f} ns per byte"
            )
        for ratio in ratios:
            communication = costs.all_reduce.seconds(trace.bytes)
            scaled = scale(trace, communication / ratio)
            results.append(_measure_ratio(settings, groups, scaled, costs, ratio, names, planners))
        descriptions = {name: group.description for name, group in groups.items()}
    return {
        "benchmark": "replay",
        "trace": trace.name,
        "tensors": len(trace.layers),
        "bytes": trace.bytes,
        "ranks": len(settings.lab.nodes),
        "rate_bits_per_second": settings.lab.bits_per_second,
        "costs": dataclasses.asdict(costs),
        "frameworks": descriptions,
        "ratios": results,
    }


def scale(trace: Trace, computation: float) -> Trace:
    """Returns the trace with times that add up to `computation` seconds."""
    seconds = trace.forward + trace.backward
    if seconds <= 0:
        raise ValueError(
            f"trace {trace.name!r} has no times of computation, so there is nothing to scale; "
            "`tfdear trace` records them"
        )
    return trace.scaled(computation / seconds)


def _measure_ratio(
    settings: Settings,
    groups: dict[str, Group],
    trace: Trace,
    costs: CommunicationCosts,
    ratio: float,
    names: Sequence[str],
    planners: dict[str, Planner],
) -> dict[str, Any]:
    lab = settings.lab
    work = {**_work(trace), "repeats": settings.iterations}
    turns: list[tuple[Case, Group, dict[str, Any]]] = []
    front: float | None = None
    for schedule in names:
        for name, planner in planners.items():
            plan = make_plan(planner, schedule, trace, costs)
            predicted = schedules.execute(plan, trace, costs).iteration_time
            case = Case(ratio, schedule, name, len(plan.buckets), predicted)
            turns.append((case, groups["tfdear"], {**work, "plan": encode(plan, work["counts"])}))
            if schedule == "dear":
                halves = _front_seconds(plan, trace, costs)
                front = halves if front is None else min(front, halves)
    if "torch" in groups:
        turns.append((Case(ratio, "torch DDP", "its own", 0, None), groups["torch"], work))
    sent: dict[int, float] = {}
    for _ in range(settings.repeats):
        for number, (case, group, arguments) in enumerate(turns):
            before = lab.bytes_sent()
            answers = group.call("replay", _TIMEOUT, **arguments)
            sent[number] = lab.most_sent_since(before)
            case.seconds += _slowest_rank(answers, "device")
            case.wall += _slowest_rank(answers, "wall")
    cases = [case for case, _, _ in turns]
    communication = costs.all_reduce.seconds(trace.bytes)
    bound = Bound(trace.forward + trace.backward, communication, front or 0.0)
    _print(trace, ratio, bound, cases, settings.tell)
    least = 2 * (len(lab.nodes) - 1) / len(lab.nodes) * trace.bytes
    return {
        "ratio": ratio,
        "forward": trace.forward,
        "backward": trace.backward,
        "communication": communication,
        "exposed_bucket": bound.exposed,
        "bound": bound.seconds,
        "cases": [
            {
                **dataclasses.asdict(case),
                "median": case.median,
                "median_wall": case.median_wall,
                "of_bound": case.median / bound.seconds,
                # DistributedDataParallel also broadcasts the weights, once per turn.
                "wire": None
                if case.predicted is None
                else sent[number] / (least * (1 + settings.iterations)),
            }
            for number, case in enumerate(cases)
        ],
    }


def _front_seconds(plan: schedules.Plan, trace: Trace, costs: CommunicationCosts) -> float:
    """Seconds of both halves of what the next forward pass needs first."""
    front = len(plan.buckets) - 1
    nbytes = sum(trace.layers[layer].bytes for layer in plan.buckets[front])
    parts = {step.phase: step.chunks for step in plan.steps if step.bucket == front}
    return sum(getattr(costs, phase).seconds(nbytes / chunks) for phase, chunks in parts.items())


def iterate(group: Group, trace: Trace, plan: schedules.Plan, iterations: int) -> list[float]:
    """Replays a trace under a plan; returns the seconds of each iteration on the slowest rank."""
    work = _work(trace)
    answers = group.call(
        "replay", _TIMEOUT, plan=encode(plan, work["counts"]), repeats=iterations, **work
    )
    return _slowest_rank(answers, "device")


def _slowest_rank(answers: Sequence[dict[str, list[float]]], clock: str) -> list[float]:
    """The time of the slowest rank in each iteration: the others waited for it."""
    return [max(times) for times in zip(*(answer[clock] for answer in answers), strict=True)]


def _work(trace: Trace) -> dict[str, Any]:
    return {
        "counts": [max(1, layer.bytes // 4) for layer in trace.layers],
        "forward": [layer.forward for layer in trace.layers],
        "backward": [layer.backward for layer in trace.layers],
    }


def encode(plan: schedules.Plan, counts: Sequence[int]) -> list[int]:
    """A plan over float32 gradients as the engine takes it."""
    tensors = [
        engine_plan.TensorSpec(names.data_type("float32"), count, False, 4 * count)
        for count in counts
    ]
    return engine_plan.encode(plan, tensors, range(len(counts)), engine_plan.PlanFormat())


def _print(
    trace: Trace, ratio: float, bound: Bound, cases: Sequence[Case], tell: Callable[[str], None]
) -> None:
    tell(
        f"\n{trace.name}, communication / computation = {ratio:g}: computation "
        f"{bound.computation:.3f} s, communication {bound.communication:.3f} s; bound, with the "
        f"front bucket after the computation: {bound.seconds:.3f} s"
    )
    rows = []
    larger = max(bound.computation, bound.communication)
    for case in cases:
        predicted = "" if case.predicted is None else f"{case.predicted:.3f}"
        error = "" if case.predicted is None else f"{case.median / case.predicted:.3f}"
        rows.append(
            [
                ("schedule", case.schedule),
                ("planner", case.planner),
                ("buckets", str(case.buckets or "?")),
                ("device s", f"{case.median:.3f}"),
                ("slowest s", f"{max(case.seconds):.3f}"),
                ("wall s", f"{case.median_wall:.3f}"),
                ("slowest s", f"{max(case.wall):.3f}"),
                ("of larger", f"{case.median / larger:.3f}"),
                ("wall of larger", f"{case.median_wall / larger:.3f}"),
                ("of bound", f"{case.median / bound.seconds:.3f}"),
                ("predicted s", predicted),
                ("device / predicted", error),
            ]
        )
    tell(table_of(rows))
    best: dict[str, float] = {}
    for case in cases:
        best[case.schedule] = min(best.get(case.schedule, case.median), case.median)
    if "dear" in best:
        others = [
            f"{seconds / best['dear']:.3f} x {name}"
            for name, seconds in best.items()
            if name != "dear"
        ]
        tell(f"dear is as fast as {', '.join(others)} (each with its best planner)")
