# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Rank 0's decisions about tensor fusion, made while training runs. Imports no TensorFlow.

[Note: Life of a plan]
Every layout of gradients starts with buckets of a fixed size, in the order of the variables
(`first_plan`). After the first steps rank 0 knows in which order and at which times gradients
become ready, lets the planner cut buckets, fixes the order of their collectives and proposes the
result; all ranks adopt it at their next agreement (`custom_ops/engine/engine_agreement.cc`, [Note:
agreement on plans]). A planner that searches gets the mean step time of every trial and names the
next, until it is done; then the step time is watched, and a drift begins a new search. Nothing of
this waits, and nothing retraces.
"""

import copy
import dataclasses
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tfdear.base.names import EVENT_KINDS, SCHEDULES_IN_HALVES
from tfdear.engine import plan as engine_plan
from tfdear.fusion.planner import (
    Planner,
    SearchingPlanner,
    find_blocks,
    keeps_first_buckets,
    make_plan,
    seeks_order,
)
from tfdear.measure import layer_times
from tfdear.planning import least_regret, optimal_buckets, plan_search, schedules
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.trace import Trace

if TYPE_CHECKING:
    from tfdear.engine.engine import Engine
    from tfdear.engine.event_reader import EventReader

# Executions before the first agreement; the first is left out of the measurement.
FIRST_AGREEMENT = 4
_POLL_SECONDS = 0.02
_IDLE_POLL_SECONDS = 0.5
_CLOSE_SECONDS = 60.0  # The search for a plan takes less.
# A step that runs while plans change belongs to neither.
_CHANGING_STEPS = 1
_WATCH_STEPS = 50
# So many times as long as a measurement took that brought nothing, none is made.
_MEASURING_RESTS = 20
# Kept beside those that a decision is made from: more than are opened between two looks.
_LATEST_STEPS = 1000
_NEVER = 1 << 40
# Rows of events that are kept for profiles: dozens of steps of the largest models. A function that
# is traced and hardly ever called never has enough of them.
_MOST_ROWS = 1 << 18
# Steps that a recorded trace is made of, those at the start included that are left out.
_TRACED_STEPS = 24
_STEP = EVENT_KINDS.index("step")


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What the model of an iteration says of a plan, in seconds."""

    time: float  # Of an iteration with the plan.
    # That no plan can beat, whatever its buckets and its order; None if the schedule sums without
    # halves.
    lower_bound: float | None


@dataclasses.dataclass
class _Layout:
    """What the tuner knows of one layout."""

    number: int
    names: list[str]
    tensors: list[engine_plan.TensorSpec]
    variables: list[int]
    planner: Planner
    # The measured times.
    trace: Trace | None = None
    tensor_of_layer: list[int] | None = None
    # When they can be measured again, after there was too little to measure.
    measure_from: float = 0.0
    # What the model says of the plan that was proposed last.
    prediction: Prediction | None = None
    # That plan, until all ranks have it, and the execution that began with.
    proposed: list[int] | None = None
    adopted: int | None = None
    finished: bool = False
    # When the latest steps were opened, and how many there were before these.
    opened: list[float] = dataclasses.field(default_factory=list)
    forgotten: int = 0

    @property
    def sizes(self) -> list[int]:
        """The bytes of each tensor."""
        return [tensor.bytes for tensor in self.tensors]

    @property
    def steps(self) -> int:
        """How many steps were opened so far."""
        return self.forgotten + len(self.opened)

    def forget_old_steps(self, kept: int) -> None:
        """Bounds what a long training leaves behind; cuts seldom."""
        excess = len(self.opened) - kept
        if excess > kept:
            del self.opened[:excess]
            self.forgotten += excess


class Tuner:
    """Watches the steps on rank 0 and proposes plans to all ranks.

    `costs` is None where nothing was measured. The measured trace of the largest layout goes to
    `trace_file`, if there is one.
    """

    def __init__(
        self,
        engine: "Engine",
        reader: "EventReader",
        planner: Planner,
        schedule: str,
        costs: CommunicationCosts | None,
        plan_format: engine_plan.PlanFormat,
        trace_file: str | None = None,
    ):
        self._engine = engine
        self._trace_file = trace_file
        self._planner = planner
        self._schedule = schedule
        self._costs = costs
        self._plan_format = plan_format
        self._reader = reader
        self._rows: list[np.ndarray] = []  # As they were read; empty when nobody needs them.
        self._mutex = threading.Lock()
        self._layouts: dict[int, _Layout] = {}
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()

    def add_layout(
        self,
        number: int,
        names: list[str],
        tensors: Sequence[engine_plan.TensorSpec],
        variables: list[int],
    ) -> None:
        """Takes charge of a layout of gradients.

        The names and the numbers of the variables may still change until its first use.
        """
        with self._mutex:
            # A search belongs to one layout: two models have two best sizes.
            planner = copy.deepcopy(self._planner)
            self._layouts[number] = _Layout(number, names, list(tensors), variables, planner)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tfdear_tuner", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends the thread; it may be in the middle of a plan."""
        self._is_closed.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            idle = False
            while not self._is_closed.wait(_IDLE_POLL_SECONDS if idle else _POLL_SECONDS):
                if self._engine.aborted() is not None:
                    return
                idle = self._advance()
        except Exception:
            # Training goes on with the plan it has.
            print("tfdear: tuning of tensor fusion ended by an error:", file=sys.stderr)
            traceback.print_exc()

    def _advance(self) -> bool:
        """Does what can be done now. Returns whether nothing is to be done soon."""
        with self._mutex:
            self._forget_traces_of_one_step()
            layouts = list(self._layouts.values())
        rows = self._reader.read_rows()
        for layout in layouts:
            steps = rows[(rows["kind"] == _STEP) & (rows["subject"] == layout.number)]
            layout.opened.extend((steps["begin"] * 1e-6).tolist())
            trial = getattr(layout.planner, "steps_per_trial", 0)
            layout.forget_old_steps(2 * max(trial, _WATCH_STEPS) + _LATEST_STEPS)
        if any(layout.trace is None for layout in layouts) or self._trace_file is not None:
            if len(rows):
                self._rows.append(rows)
            while sum(map(len, self._rows)) > _MOST_ROWS and len(self._rows) > 1:
                del self._rows[0]
        else:
            self._rows.clear()
        for layout in layouts:
            if layout.trace is None:
                self._profile(layout)
            else:
                self._tune(layout)
        self._record_trace(layouts)
        waiting = [layout for layout in layouts if not layout.finished]
        # A function that is traced and hardly ever called does not keep this thread busy.
        hardly_called = all(layout.steps < FIRST_AGREEMENT for layout in waiting)
        settled = hardly_called and len(waiting) < len(layouts)
        return settled and self._trace_file is None

    def _forget_traces_of_one_step(self) -> None:
        """Keeps the layouts that have a plan of their own."""
        for number in list(self._layouts):
            if self._engine.shared_layout(number) != number:
                del self._layouts[number]

    def _record_trace(self, layouts: list[_Layout]) -> None:
        """Writes the trace once the largest layout has made steps enough for good medians."""
        if self._trace_file is None:
            return
        # Of equally large ones, as two functions that train one model have, the busier one.
        largest = max(layouts, key=lambda layout: (sum(layout.sizes), layout.steps))
        if largest.steps <= _TRACED_STEPS:
            return
        measured = self._measure(largest, skip=FIRST_AGREEMENT)
        if measured is not None:
            path, self._trace_file = self._trace_file, None
            try:
                measured[0].save(path)
            except OSError as error:
                print(f"tfdear: the trace could not be written: {error}", file=sys.stderr)

    def _profile(self, layout: _Layout) -> None:
        # The last step opened is still under way.
        if layout.steps < FIRST_AGREEMENT:
            return
        measured = self._measure(layout)
        if measured is None:
            return
        trace, tensor_of_layer = measured
        find = find_blocks(layout.planner)
        if find is not None:
            blocks = find(layout.names, layout.sizes)
            trace, tensor_of_layer = layer_times.in_blocks(trace, tensor_of_layer, blocks)
        layout.trace, layout.tensor_of_layer = trace, tensor_of_layer
        self._propose(layout)

    def _measure(self, layout: _Layout, skip: int = 1) -> tuple[Trace, list[int]] | None:
        # Where steps are rare among others', their rows may be too few each time.
        begin = time.monotonic()
        if begin < layout.measure_from:
            return None
        rows = np.concatenate(self._rows)
        measured = layer_times.measure(
            rows, layout.number, layout.names, layout.sizes, layout.variables, skip
        )
        if measured is None:
            end = time.monotonic()
            layout.measure_from = end + _MEASURING_RESTS * (end - begin)
        return measured

    def _propose(self, layout: _Layout) -> None:
        assert layout.trace is not None and layout.tensor_of_layer is not None
        compressed = self._plan_format.sparse_buckets is not None
        if compressed and keeps_first_buckets(layout.planner):
            words = self._in_measured_order(layout)
        else:
            planner = layout.planner
            plan, made_for = least_regret.choose(
                lambda trace: make_plan(planner, self._schedule, trace, self._costs),
                layout.trace,
                self._costs,
            )
            # Near the bound of all plans, of which those with whole blocks are only some.
            sought = seeks_order(planner) and find_blocks(planner) is None
            layout.prediction = self._predict(plan, made_for, sought)
            words = engine_plan.encode(
                plan, layout.tensors, layout.tensor_of_layer, self._plan_format
            )
        layout.proposed, layout.adopted = words, None
        self._engine.propose(layout.number, words, self._interval(layout.planner))

    def _predict(
        self, plan: schedules.Plan, trace: Trace, sought: bool = False
    ) -> Prediction | None:
        """What the model says; of a plan that was `sought` near the bound, a bound near it.

        Other plans are too far from the bound for it to be raised to them, which would take long.
        """
        if self._costs is None:
            return None
        time = schedules.execute(plan, trace, self._costs).iteration_time
        bound = None
        if sought and self._schedule == "dear":
            bound = plan_search.lower_bound(trace, self._costs, time)
        elif self._schedule in SCHEDULES_IN_HALVES:
            bound = optimal_buckets.lower_bound(trace, self._costs)
        return Prediction(time, bound)

    def prediction(self, layout: int) -> Prediction | None:
        """What the model says of the latest plan of a layout; None: there is none yet."""
        with self._mutex:
            found = self._layouts.get(self._engine.shared_layout(layout))
        return None if found is None else found.prediction

    def _in_measured_order(self, layout: _Layout) -> list[int]:
        """The plan for the buckets that there are, by the times at which they become ready."""
        assert layout.trace is not None and layout.tensor_of_layer is not None
        buckets = engine_plan.decode(self._engine.plan(layout.number)[0]).buckets
        trace, bucket_of_layer = layer_times.of_buckets(
            layout.trace, layout.tensor_of_layer, buckets
        )
        alone = [[layer] for layer in reversed(range(len(buckets)))]
        plan, made_for = least_regret.choose(
            lambda trace: schedules.make_plan(self._schedule, alone, trace, self._costs),
            trace,
            self._costs,
        )
        layout.prediction = self._predict(plan, made_for)
        return engine_plan.encode_over_buckets(
            plan, buckets, bucket_of_layer, layout.tensors, self._plan_format
        )

    def _interval(self, planner: Planner) -> int:
        if not isinstance(planner, SearchingPlanner):
            return _NEVER
        return _WATCH_STEPS if planner.done else planner.steps_per_trial + _CHANGING_STEPS

    def _tune(self, layout: _Layout) -> None:
        """Ends a trial when enough steps were made with its plan."""
        if layout.finished:
            return
        if layout.adopted is None:
            plan, executions = self._engine.plan(layout.number)
            if plan != layout.proposed:
                return
            layout.adopted = executions
        planner = layout.planner
        if not isinstance(planner, SearchingPlanner):
            layout.finished = True
            return
        assert layout.trace is not None
        steps = _WATCH_STEPS if planner.done else planner.steps_per_trial
        # Times of openings: one more than steps.
        first = layout.adopted - 1 + _CHANGING_STEPS
        if planner.done:
            first = max(first, layout.steps - 1 - steps)
        last = first + steps
        if layout.steps <= last:
            return
        first = max(first, layout.forgotten)
        times = np.diff(layout.opened[first - layout.forgotten : last + 1 - layout.forgotten])
        before = planner.buckets(layout.trace, self._costs, self._schedule)
        was_done = planner.done
        # The median: a validation or a checkpoint between two steps belongs to no bucket size.
        planner.observe(float(np.median(times)))
        after = planner.buckets(layout.trace, self._costs, self._schedule)
        if before != after or was_done != planner.done:
            self._propose(layout)
        else:
            layout.adopted = layout.steps
            self._engine.propose(layout.number, [], self._interval(planner))
