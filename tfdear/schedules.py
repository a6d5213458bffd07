# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""When each bucket travels, in a model of one iteration. Imports no TensorFlow.

[Note: The model of an iteration] One device computes, one line carries one collective at a time.
The period begins with the backward pass and an idle line and ends with the next forward pass.
A bucket is ready when the backward pass has made the last of its gradients; a layer's forward
computation waits for the result of its bucket. Everything else is the schedule's choice:
which collective the line takes next. `docs/fusion.md` has the formulas; this module plays events.
"""

import dataclasses
import heapq
import math
from collections.abc import Sequence

from tfdear.cost_model import CommunicationCosts
from tfdear.trace import Trace

__all__ = ["SCHEDULES", "Plan", "Step", "Timeline", "Transfer", "execute", "make_plan", "timeline"]

SCHEDULES = ("dear", "dear_barrier", "wfbp", "sequential", "bytescheduler")

_CHUNK_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One stay of a bucket, or of a part of it, on the line.

    Args:
        phase: "reduce_scatter", "all_gather" or "all_reduce".
        bucket: Index in the bucket list.
        chunk: Which part of the bucket's phase, from 0.
        chunks: How many parts the phase is in.
        begin: Start, in seconds since the backward pass began.
        end: End, in seconds since the backward pass began.
    """

    phase: str
    bucket: int
    chunk: int
    chunks: int
    begin: float
    end: float


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
class Step:
    """One collective of a plan.

    Args:
        phase: "reduce_scatter", "all_gather" or "all_reduce".
        bucket: Index in the plan's bucket list.
        chunk: Which part of the bucket, from 0.
        chunks: In how many equal parts this phase of the bucket travels.
    """

    phase: str
    bucket: int
    chunk: int
    chunks: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """A fixed order of collectives, so that ranks need no negotiation.

    The line takes the steps strictly in this order, one at a time; a step waits until its bucket
    is filled, an all-gather until its bucket is reduced.

    Args:
        buckets: Layers of each bucket, in backward order.
        steps: The collectives.
        wait_for_all: Whether no step may begin before all buckets are filled.
    """

    buckets: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    wait_for_all: bool


@dataclasses.dataclass(frozen=True)
class _Job:
    """A phase of a bucket, or a chunk of it, and how urgent it is (less is sooner)."""

    priority: tuple[float, ...]
    step: Step
    seconds: float


def timeline(
    schedule: str,
    buckets: Sequence[Sequence[int]],
    trace: Trace,
    costs: CommunicationCosts,
    chunk_bytes: int | None = None,
) -> Timeline:
    """Plays one iteration, event by event.

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
    ready = _ready_times(_check(schedule, buckets, trace), trace)
    jobs = _jobs(schedule, buckets, trace, costs, {})
    return _finish(_play(schedule, jobs, ready, preemptive=True), buckets, trace)


def execute(plan: Plan, trace: Trace, costs: CommunicationCosts) -> Timeline:
    """Plays one iteration of a fixed plan, as the engine runs it.

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
    ready = _ready_times(_check("dear", plan.buckets, trace), trace)
    if plan.wait_for_all:
        ready = [max(ready)] * len(ready)
    bytes_of = [sum(trace.layers[i].bytes for i in bucket) for bucket in plan.buckets]
    reduced = [0] * len(plan.buckets)
    transfers: list[Transfer] = []
    line = 0.0
    for step in plan.steps:
        if step.phase == "all_gather":
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
    return _finish(transfers, plan.buckets, trace)


def make_plan(
    schedule: str,
    buckets: Sequence[Sequence[int]],
    trace: Trace,
    costs: CommunicationCosts | None = None,
    chunk_bytes: int = _CHUNK_BYTES,
) -> Plan:
    """Fixes the order that the schedule's priority queue would take.

    Use it to give the engine of every rank the same order of collectives.

    Args:
        schedule: One of `SCHEDULES`.
        buckets: Layers of each bucket, in backward order.
        trace: The model; without `costs` only its sizes count.
        costs: The network. Defaults to None: nothing is measured yet, and the plan is the
            schedule's plain order.
        chunk_bytes: Largest part of a bucket that the line carries at a time where the schedule
            cuts, in bytes. Defaults to 4 MiB.

    Returns:
        The `Plan`.

    Raises:
        ValueError: The schedule is unknown, the bucket list does not fit the trace, or
            `chunk_bytes` is not positive.
    """
    buckets = _check(schedule, buckets, trace)
    if chunk_bytes < 1:
        raise ValueError(
            f"`chunk_bytes` must be a positive number of bytes. Received: {chunk_bytes!r}"
        )
    count = len(buckets)
    if schedule == "bytescheduler":
        steps = _partitioned_order(buckets, trace, costs, chunk_bytes)
    elif schedule in ("wfbp", "sequential"):
        steps = [Step("all_reduce", bucket, 0, 1) for bucket in range(count)]
    else:
        steps = [Step("reduce_scatter", bucket, 0, 1) for bucket in range(count)]
        steps += [Step("all_gather", bucket, 0, 1) for bucket in reversed(range(count))]
    plan = Plan(buckets, tuple(steps), wait_for_all=schedule == "sequential")
    if schedule == "dear" and costs is not None:
        return _fill_gaps(plan, trace, costs, chunk_bytes)
    return plan


def _fill_gaps(plan: Plan, trace: Trace, costs: CommunicationCosts, chunk_bytes: int) -> Plan:
    """Moves all-gathers into the gaps between reduce-scatters, where that helps.

    Small chunks fit more gaps but pay the start-up more often; a chunk that runs past the end of
    its gap delays a reduce-scatter, but may delay nothing that counts. Which of these matters
    depends on the model and the network, so a few sizes and tolerances are played and the best is
    taken; of equally good ones the first, which has the fewest chunks.
    """
    ready = _ready_times(plan.buckets, trace)
    best, best_time = plan, execute(plan, trace, costs).iteration_time
    for limit in (None, 16 * chunk_bytes, 4 * chunk_bytes, chunk_bytes):
        chunks = _chunks(plan.buckets, trace, limit)
        jobs = _jobs("dear", plan.buckets, trace, costs, {"all_gather": chunks})
        for overrun in (0.0, 0.25, 0.5, 1.0):
            played = _play("dear", jobs, ready, preemptive=False, overrun=overrun)
            steps = _join_chunks([Step(t.phase, t.bucket, t.chunk, t.chunks) for t in played])
            candidate = dataclasses.replace(plan, steps=tuple(steps))
            seconds = execute(candidate, trace, costs).iteration_time
            if seconds < best_time:
                best, best_time = candidate, seconds
    return best


def _join_chunks(steps: list[Step]) -> list[Step]:
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


def _partitioned_order(
    buckets: Sequence[Sequence[int]],
    trace: Trace,
    costs: CommunicationCosts | None,
    chunk_bytes: int,
) -> list[Step]:
    chunks = _chunks(buckets, trace, chunk_bytes)
    if costs is None:
        return [Step("all_reduce", b, c, n) for b, n in enumerate(chunks) for c in range(n)]
    jobs = _jobs("bytescheduler", buckets, trace, costs, {"all_reduce": chunks})
    played = _play("bytescheduler", jobs, _ready_times(buckets, trace), preemptive=False)
    return [Step(t.phase, t.bucket, t.chunk, t.chunks) for t in played]


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


def _ready_times(buckets: Sequence[Sequence[int]], trace: Trace) -> list[float]:
    """When the backward pass has made the last gradient of each bucket."""
    times = []
    clock = 0.0
    for bucket in buckets:
        for layer in bucket:
            clock += trace.layers[layer].backward
        times.append(clock)
    return times


def _chunks(buckets: Sequence[Sequence[int]], trace: Trace, chunk_bytes: int | None) -> list[int]:
    """In how many parts each bucket travels."""
    if chunk_bytes is None:
        return [1] * len(buckets)
    sizes = [sum(trace.layers[layer].bytes for layer in bucket) for bucket in buckets]
    return [max(1, -(-size // chunk_bytes)) for size in sizes]


def _jobs(
    schedule: str,
    buckets: Sequence[Sequence[int]],
    trace: Trace,
    costs: CommunicationCosts,
    chunks: dict[str, list[int]],
) -> dict[tuple[str, int], list[_Job]]:
    """What the line has to carry, by phase and bucket, with the schedule's priorities."""
    phases = ["reduce_scatter", "all_gather"]
    if schedule not in ("dear", "dear_barrier"):
        phases = ["all_reduce"]
    jobs = {}
    for bucket, layers in enumerate(buckets):
        size = sum(trace.layers[layer].bytes for layer in layers)
        for phase in phases:
            parts = chunks[phase][bucket] if phase in chunks else 1
            seconds = getattr(costs, phase).seconds(size / parts)
            front_first = phase == "all_gather" or schedule == "bytescheduler"
            rank = (phases.index(phase), -bucket if front_first else bucket)
            jobs[phase, bucket] = [
                _Job((*rank, part), Step(phase, bucket, part, parts), seconds)
                for part in range(parts)
            ]
    return jobs


def _play(
    schedule: str,
    jobs: dict[tuple[str, int], list[_Job]],
    ready: list[float],
    preemptive: bool,
    overrun: float = 1.0,
) -> list[Transfer]:
    """Plays the line: at any time it carries the most urgent of the jobs that may begin.

    Without preemption, an all-gather begins only if at most the part `overrun` of it would be on
    the line after the next bucket is ready; else the line stays idle until then.
    """
    if schedule == "sequential":
        ready = [max(ready)] * len(ready)
    first_phase = "reduce_scatter" if schedule in ("dear", "dear_barrier") else "all_reduce"
    waiting: list[tuple[tuple[float, ...], float, Step]] = []
    unreduced = len(ready)
    arrived = 0  # Buckets become ready in the order of the list.
    clock = 0.0
    transfers: list[Transfer] = []

    def release(phase: str, bucket: int) -> None:
        for job in jobs[phase, bucket]:
            heapq.heappush(waiting, (job.priority, job.seconds, job.step))

    while True:
        while arrived < len(ready) and ready[arrived] <= clock:
            release(first_phase, arrived)
            arrived += 1
        next_ready = ready[arrived] if arrived < len(ready) else math.inf
        if not waiting:
            if next_ready == math.inf:
                return _number(transfers) if preemptive else transfers
            clock = next_ready
            continue
        priority, seconds, step = heapq.heappop(waiting)
        if clock + seconds > next_ready:
            if preemptive:
                transfers.append(
                    Transfer(step.phase, step.bucket, step.chunk, step.chunks, clock, next_ready)
                )
                heapq.heappush(waiting, (priority, seconds - (next_ready - clock), step))
                clock = next_ready
                continue
            if step.phase == "all_gather" and clock + seconds - next_ready > overrun * seconds:
                heapq.heappush(waiting, (priority, seconds, step))
                clock = next_ready
                continue
        transfers.append(
            Transfer(step.phase, step.bucket, step.chunk, step.chunks, clock, clock + seconds)
        )
        clock += seconds
        if step.phase == "reduce_scatter":
            unreduced -= 1
            if schedule == "dear":
                release("all_gather", step.bucket)
            elif not unreduced:
                for bucket in range(len(ready)):
                    release("all_gather", bucket)


def _number(pieces: list[Transfer]) -> list[Transfer]:
    """Joins what was interrupted in vain and numbers the parts of what was interrupted."""
    joined: list[Transfer] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and (last.phase, last.bucket) == (piece.phase, piece.bucket):
            joined[-1] = dataclasses.replace(last, end=piece.end)
        else:
            joined.append(piece)
    total: dict[tuple[str, int], int] = {}
    for piece in joined:
        total[piece.phase, piece.bucket] = total.get((piece.phase, piece.bucket), 0) + 1
    seen: dict[tuple[str, int], int] = {}
    numbered = []
    for piece in joined:
        key = (piece.phase, piece.bucket)
        numbered.append(dataclasses.replace(piece, chunk=seen.get(key, 0), chunks=total[key]))
        seen[key] = seen.get(key, 0) + 1
    return numbered


def _finish(
    transfers: Sequence[Transfer], buckets: Sequence[Sequence[int]], trace: Trace
) -> Timeline:
    """Plays the forward pass, whose layers wait for the results of their buckets."""
    arrival = [math.inf] * len(buckets)
    for transfer in transfers:
        if transfer.phase != "reduce_scatter":
            arrival[transfer.bucket] = transfer.end  # The last part counts.
    backward_end = clock = _ready_times(buckets, trace)[-1]
    for bucket in reversed(range(len(buckets))):
        clock = max(clock, arrival[bucket])
        for layer in reversed(buckets[bucket]):
            clock += trace.layers[layer].forward
    computation = backward_end + math.fsum(layer.forward for layer in trace.layers)
    return Timeline(tuple(transfers), backward_end, clock, computation)
