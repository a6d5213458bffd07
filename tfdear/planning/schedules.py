# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""When each bucket travels, in a model of one iteration. Imports no TensorFlow.

[Note: The model of an iteration] One device computes; one line, the network link, carries one
collective at a time. An iteration starts with the backward pass and an idle line and ends with the
next forward pass. A bucket is ready when the backward pass has computed the last of its gradients;
a layer's forward computation waits for the result of its bucket. The schedule decides the rest:
which collective the line takes next. `docs/fusion.md` has the formulas; this module simulates
events.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from tfdear.base.names import HALVES, SCHEDULES, SCHEDULES_IN_HALVES
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.line import Step, Transfer, make_queue_items, play
from tfdear.planning.trace import Trace

CHUNK_BYTES = 4 << 20
# Partition sizes and credits that are tried for "bytescheduler"; the first ones are as published.
_PARTITIONS = (4 << 20, 256 << 10, 1 << 20, 16 << 20, 64 << 20)
_CREDITS = (1, 2, 4)
_FEW_BUCKETS = 32
_MOST_PARTS = 8
_SCATTER, _GATHER = HALVES


@dataclasses.dataclass(frozen=True)
class Timeline:
    """One iteration in the steady state.

    Args:
        transfers: What the line carries, in order of issue.
        backward_end: When the backward pass ends, in seconds since it began.
        iteration_time: When the next forward pass ends, in seconds since the backward pass began.
        computation: Time of both passes, in seconds.
    """

    transfers: tuple[Transfer, ...]
    backward_end: float
    iteration_time: float
    computation: float

    @property
    def communication(self) -> float:
        """How long the line is busy, in seconds."""
        return math.fsum(transfer.end - transfer.begin for transfer in self.transfers)

    @property
    def exposed(self) -> float:
        """By how much communication makes the iteration longer than computation, in seconds."""
        return self.iteration_time - self.computation


@dataclasses.dataclass(frozen=True)
class Plan:
    """A fixed order of collectives, so that ranks need no negotiation.

    The line takes the steps strictly in this order, one at a time; a step waits until its bucket
    is filled, an all-gather until its bucket is reduced.

    Args:
        buckets: Layers of each bucket, in backward order.
        steps: The collectives.
        wait_for_all: Whether no step may start before all buckets are filled.
    """

    buckets: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    wait_for_all: bool


def timeline(
    schedule: str,
    buckets: Sequence[Sequence[int]],
    trace: Trace,
    costs: CommunicationCosts,
    chunk_bytes: int | None = None,
) -> Timeline:
    """Simulates one iteration, event by event.

    Use it to predict the iteration time of a schedule with a bucket list.

    Args:
        schedule: One of `SCHEDULES`.
        buckets: Layers of each bucket, in backward order.
        trace: The model.
        costs: The network.
        chunk_bytes: Size of a chunk, in bytes. Defaults to None: the ideal queue, which interrupts
            a transfer at no cost when a more urgent one is ready. With a size, the order is the
            one that `make_plan` fixes, and a transfer that has begun runs to its end.

    Returns:
        The `Timeline`.

    Raises:
        ValueError: The schedule is unknown or the bucket list does not fit the trace.

    Example:

    >>> from tfdear import cost_model, schedules
    >>> from tfdear.trace import Layer, Trace
    >>> trace = Trace("two", (Layer("a", 8, 1.0, 2.0), Layer("b", 8, 1.0, 2.0)))
    >>> costs = cost_model.ring(2, alpha=0.0, beta=0.25)
    >>> schedules.timeline("dear", [[1], [0]], trace, costs).iteration_time
    8.0
    """
    if chunk_bytes is not None:
        return execute(make_plan(schedule, buckets, trace, costs, chunk_bytes), trace, costs)
    ready = ready_times(_check(schedule, buckets, trace), trace)
    items = make_queue_items(schedule, buckets, trace, costs, {})
    return finish(play(schedule, items, ready, preemptive=True), buckets, trace)


def execute(plan: Plan, trace: Trace, costs: CommunicationCosts) -> Timeline:
    """Simulates one iteration of a fixed plan, as the engine runs it.

    Use it to predict what a plan takes, with the times it was made for or with others.

    Args:
        plan: The order of collectives.
        trace: The model.
        costs: The network.

    Returns:
        The `Timeline`.

    Raises:
        ValueError: The plan does not fit the trace, or gathers a bucket before it is reduced.
    """
    ready = ready_times(_check("dear", plan.buckets, trace), trace)
    if plan.wait_for_all:
        ready = [max(ready)] * len(ready)
    bytes_of = [sum(trace.layers[i].bytes for i in bucket) for bucket in plan.buckets]
    reduced = [0] * len(plan.buckets)
    transfers: list[Transfer] = []
    line = 0.0
    for step in plan.steps:
        if step.phase == _GATHER:
            if reduced[step.bucket] != 1:
                raise ValueError(
                    f"The plan gathers bucket {step.bucket} before it is reduced; an all-gather "
                    "must come after the reduce-scatter of its bucket."
                )
        else:
            line = max(line, ready[step.bucket])
            reduced[step.bucket] += step.chunk == step.chunks - 1
        seconds = getattr(costs, step.phase).seconds(bytes_of[step.bucket] / step.chunks)
        transfers.append(
            Transfer(step.phase, step.bucket, step.chunk, step.chunks, line, line + seconds)
        )
        line += seconds
    return finish(transfers, plan.buckets, trace)


def make_plan(
    schedule: str,
    buckets: Sequence[Sequence[int]],
    trace: Trace,
    costs: CommunicationCosts | None = None,
    chunk_bytes: int | None = None,
    credit: int | None = None,
) -> Plan:
    """Fixes the order that the schedule's priority queue would take.

    Use it to give the engine of every rank the same order of collectives.

    Args:
        schedule: One of `SCHEDULES`.
        buckets: Layers of each bucket, in backward order.
        trace: The model; without `costs` only its sizes count.
        costs: The network. Defaults to None: nothing is measured yet, and the plan is the
            schedule's plain order.
        chunk_bytes: How finely a bucket may be cut, in bytes: "bytescheduler" cuts into parts of
            this size, "dear" cuts all-gathers into parts of this size or larger ones, whatever
            fits the gaps best. Defaults to None: the size is tuned for "bytescheduler" if there
            are costs, and 4 MiB otherwise.
        credit: How many parts "bytescheduler" queues on the line at a time; more urgent ones come
            after them. Defaults to None: tuned if there are costs, else 1.

    Returns:
        The `Plan`.

    Raises:
        ValueError: The schedule is unknown, the bucket list does not fit the trace, or
            `chunk_bytes` or `credit` is not positive.
    """
    buckets = _check(schedule, buckets, trace)
    for name, value in (("chunk_bytes", chunk_bytes), ("credit", credit)):
        if value is not None and value < 1:
            raise ValueError(f"`{name}` must be a positive number. Received: {value!r}")
    if schedule == "bytescheduler":
        return _partitioned(buckets, trace, costs, chunk_bytes, credit)
    steps = plain_steps(schedule, list(reversed(range(len(buckets)))))
    plan = Plan(buckets, tuple(steps), wait_for_all=schedule == "sequential")
    if schedule == "dear" and costs is not None:
        return _fill_gaps(plan, trace, costs, chunk_bytes or CHUNK_BYTES)
    return plan


def plain_steps(schedule: str, forward: Sequence[int]) -> list[Step]:
    """Whole buckets as they become ready; they are gathered in the order of the forward pass."""
    numbers = range(len(forward))
    if schedule not in SCHEDULES_IN_HALVES:
        return [Step("all_reduce", number, 0, 1) for number in numbers]
    scatters = [Step(_SCATTER, number, 0, 1) for number in numbers]
    return scatters + [Step(_GATHER, number, 0, 1) for number in forward]


def _fill_gaps(plan: Plan, trace: Trace, costs: CommunicationCosts, chunk_bytes: int) -> Plan:
    """Moves all-gathers into the gaps between reduce-scatters, where that helps.

    Small chunks fit more gaps but pay the start-up more often; a chunk that runs past the end of
    its gap delays a reduce-scatter, but perhaps not the iteration. Which effect is larger depends
    on the model and the network, so a few sizes and tolerances are simulated and the best is taken;
    of equally good ones the first, which has the fewest chunks.
    """
    ready = ready_times(plan.buckets, trace)

    def candidate(chunks: list[int], overrun: float) -> tuple[float, Plan]:
        items = make_queue_items("dear", plan.buckets, trace, costs, {_GATHER: chunks})
        transfers = play("dear", items, ready, preemptive=False, overrun=overrun)
        steps = join_chunks([Step(t.phase, t.bucket, t.chunk, t.chunks) for t in transfers])
        filled = dataclasses.replace(plan, steps=tuple(steps))
        return execute(filled, trace, costs).iteration_time, filled

    finest = chunks_of(plan.buckets, trace, chunk_bytes)
    best_chunks, best_overrun = [1] * len(finest), 1.0
    best_time = execute(plan, trace, costs).iteration_time
    for coarseness in (math.inf, 16, 4, 1):
        chunks = [math.ceil(parts / coarseness) or 1 for parts in finest]
        for overrun in (0.0, 0.25, 0.5, 1.0):
            seconds, filled = candidate(chunks, overrun)
            if seconds < best_time:
                plan, best_time, best_chunks, best_overrun = filled, seconds, chunks, overrun
    if len(finest) <= _FEW_BUCKETS:
        # Few large buckets: how each of them is cut decides how well it fits its gap.
        for bucket, most in enumerate(finest):
            for parts in range(1, min(most, _MOST_PARTS) + 1):
                chunks = [*best_chunks[:bucket], parts, *best_chunks[bucket + 1 :]]
                seconds, filled = candidate(chunks, best_overrun)
                if seconds < best_time:
                    plan, best_time, best_chunks = filled, seconds, chunks
    return plan


def join_chunks(steps: list[Step]) -> list[Step]:
    """Makes one step of the chunks of a bucket that follow one another without a break."""
    joined: list[Step] = []
    position = 0
    while position < len(steps):
        step = steps[position]
        run = steps[position : position + step.chunks]
        if step.chunk == 0 and all((s.phase, s.bucket) == (step.phase, step.bucket) for s in run):
            joined.append(Step(step.phase, step.bucket, 0, 1))
            position += step.chunks
        else:
            joined.append(step)
            position += 1
    return joined


def _partitioned(
    buckets: tuple[tuple[int, ...], ...],
    trace: Trace,
    costs: CommunicationCosts | None,
    chunk_bytes: int | None,
    credit: int | None,
) -> Plan:
    """The order of ByteScheduler; with the best partition size and credit, if none is given."""
    if costs is None:
        chunks = chunks_of(buckets, trace, chunk_bytes or CHUNK_BYTES)
        steps = [Step("all_reduce", b, c, n) for b, n in enumerate(chunks) for c in range(n)]
        return Plan(buckets, tuple(steps), wait_for_all=False)
    ready = ready_times(buckets, trace)
    plans = []
    for size in _PARTITIONS if chunk_bytes is None else (chunk_bytes,):
        chunks = chunks_of(buckets, trace, size)
        items = make_queue_items("bytescheduler", buckets, trace, costs, {"all_reduce": chunks})
        for parts in _CREDITS if credit is None else (credit,):
            transfers = play("bytescheduler", items, ready, preemptive=False, credit=parts)
            steps = [Step(t.phase, t.bucket, t.chunk, t.chunks) for t in transfers]
            plans.append(Plan(buckets, tuple(steps), wait_for_all=False))
    return min(plans, key=lambda plan: execute(plan, trace, costs).iteration_time)


def _check(
    schedule: str, buckets: Sequence[Sequence[int]], trace: Trace
) -> tuple[tuple[int, ...], ...]:
    if schedule not in SCHEDULES:
        raise ValueError(f"`schedule` must be one of {SCHEDULES}. Received: {schedule!r}")
    layers = [layer for bucket in buckets for layer in bucket]
    if layers != list(reversed(range(len(trace.layers)))) or not all(buckets):
        raise ValueError(
            f"Buckets must hold the {len(trace.layers)} layers of trace {trace.name!r} from the "
            f"last to the first, each once, and none may be empty. Received: {buckets!r}"
        )
    return tuple(tuple(bucket) for bucket in buckets)


def ready_times(buckets: Sequence[Sequence[int]], trace: Trace) -> list[float]:
    """When the backward pass has made the last gradient of each bucket."""
    times = []
    clock = 0.0
    for bucket in buckets:
        for layer in bucket:
            clock += trace.layers[layer].backward
        times.append(clock)
    return times


def chunks_of(buckets: Sequence[Sequence[int]], trace: Trace, chunk_bytes: int) -> list[int]:
    """The number of parts in which each bucket is sent."""
    sizes = [sum(trace.layers[layer].bytes for layer in bucket) for bucket in buckets]
    return [max(1, -(-size // chunk_bytes)) for size in sizes]


def finish(
    transfers: Sequence[Transfer],
    buckets: Sequence[Sequence[int]],
    trace: Trace,
    arrivals: Mapping[int, float] | None = None,
    on_demand: Mapping[int, Sequence[Transfer]] | None = None,
) -> Timeline:
    """Simulates the forward pass, whose layers wait for the results of their buckets.

    Args:
        transfers: What the line carries.
        buckets: Layers of each bucket, in backward order.
        trace: The model.
        arrivals: Of layers that wait for something else, too: when they have it.
        on_demand: What the line carries for a layer when the forward pass comes to it, after
            everything else; the times count from then.
    """
    arrival = [math.inf] * len(buckets)
    for transfer in transfers:
        if transfer.phase != _SCATTER and transfer.bucket < len(buckets):
            arrival[transfer.bucket] = transfer.end  # The last part counts.
    transfers = list(transfers)
    line_end = max((transfer.end for transfer in transfers), default=0.0)
    backward_end = clock = ready_times(buckets, trace)[-1]
    for bucket in reversed(range(len(buckets))):
        clock = max(clock, arrival[bucket])
        for layer in reversed(buckets[bucket]):
            clock = max(clock, arrivals.get(layer, 0.0) if arrivals else 0.0)
            for asked in on_demand.get(layer, ()) if on_demand else ():
                begin = max(clock, line_end)
                clock = line_end = begin + asked.end - asked.begin
                transfers.append(dataclasses.replace(asked, begin=begin, end=line_end))
            clock += trace.layers[layer].forward
    # What no layer waits for is part of the iteration, too: the line is idle when the next begins.
    iteration_time = max(clock, line_end)
    return Timeline(tuple(transfers), backward_end, iteration_time, backward_end + trace.forward)
