# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The line of the model, a network link: which collective it carries when. No TensorFlow."""

import collections
import dataclasses
import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfdear.base.names import HALVES, SCHEDULES_IN_HALVES
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.trace import Trace

_SCATTER, _GATHER = HALVES
_BARRIER = ("barrier", 0)


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
class Transfer(Step):
    """The transfer of a bucket, or of a part of it, on the line.

    Args:
        phase: "reduce_scatter", "all_gather" or "all_reduce".
        bucket: Index in the bucket list.
        chunk: Which part of the bucket's phase, from 0.
        chunks: How many parts the phase is in.
        begin: Start, in seconds since the backward pass began.
        end: End, in seconds since the backward pass began.
    """

    begin: float
    end: float


class QueueItem(NamedTuple):
    """A phase of a bucket, or a chunk of it, and how urgent it is: least priority first."""

    priority: tuple[float, ...]  # No two items have the same.
    step: Step
    seconds: float


def make_queue_items(
    schedule: str,
    buckets: Sequence[Sequence[int]],
    trace: Trace,
    costs: CommunicationCosts,
    chunks: Mapping[str, Sequence[int]],
) -> dict[tuple[str, int], list[QueueItem]]:
    """What the line has to carry, by phase and bucket, with the schedule's priorities."""
    phases = HALVES if schedule in SCHEDULES_IN_HALVES else ("all_reduce",)
    items = {}
    for bucket, layers in enumerate(buckets):
        size = sum(trace.layers[layer].bytes for layer in layers)
        for phase in phases:
            parts = chunks[phase][bucket] if phase in chunks else 1
            seconds = getattr(costs, phase).seconds(size / parts)
            front_first = phase == _GATHER or schedule == "bytescheduler"
            rank = (phases.index(phase), -bucket if front_first else bucket)
            items[phase, bucket] = [
                QueueItem((*rank, part), Step(phase, bucket, part, parts), seconds)
                for part in range(parts)
            ]
    return items


class Load(NamedTuple):
    """What the line has to carry of a phase of a bucket, and when it may."""

    items: list[QueueItem]
    ready: float = 0.0  # Not before this time,
    after: tuple[tuple[str, int], ...] = ()  # nor before all of these have been carried.


def play(
    schedule: str,
    items: dict[tuple[str, int], list[QueueItem]],
    ready: list[float],
    preemptive: bool,
    overrun: float = 1.0,
    credit: int = 1,
) -> list[Transfer]:
    """Simulates the line with the collectives of buckets; see `carry`."""
    return carry(make_loads(schedule, items, ready), preemptive, overrun, credit)


def make_loads(
    schedule: str, items: dict[tuple[str, int], list[QueueItem]], ready: list[float]
) -> dict[tuple[str, int], Load]:
    """When the collectives of each bucket may start."""
    if schedule == "sequential":
        ready = [max(ready)] * len(ready)
    if schedule not in SCHEDULES_IN_HALVES:
        return {key: Load(of_bucket, ready[key[1]]) for key, of_bucket in items.items()}
    scatters = [(_SCATTER, bucket) for bucket in range(len(ready))]
    loads = {key: Load(items[key], ready[key[1]]) for key in scatters}
    if schedule != "dear":
        loads[_BARRIER] = Load([], 0.0, tuple(scatters))
    for key in scatters:
        gather = (_GATHER, key[1])
        loads[gather] = Load(items[gather], 0.0, (key if schedule == "dear" else _BARRIER,))
    return loads


def carry(
    loads: Mapping[tuple[str, int], Load],
    preemptive: bool,
    overrun: float = 1.0,
    credit: int = 1,
) -> list[Transfer]:
    """Simulates the line: at any time it carries the most urgent work that can start.

    Without preemption, work starts shortly before a more urgent bucket is ready only if at most the
    fraction `overrun` of it would still be on the line then; otherwise the line stays idle until
    that bucket is ready. Up to `credit` pieces of work are queued on the line at a time; more
    urgent work comes after them.
    """
    waiting: list[QueueItem] = []
    queued: collections.deque[QueueItem] = collections.deque()
    left = {key: len(load.items) for key, load in loads.items()}
    blocking = {key: len(load.after) for key, load in loads.items()}
    followers = collections.defaultdict(list)
    for key, load in loads.items():
        for before in load.after:
            followers[before].append(key)
    # Of loads that are ready at the same time, the first in the mapping arrives first.
    numbers = {key: number for number, key in enumerate(loads)}
    arrivals = [(load.ready, numbers[key], key) for key, load in loads.items() if not load.after]
    heapq.heapify(arrivals)
    clock = 0.0
    transfers: list[Transfer] = []

    def release(key: tuple[str, int]) -> None:
        for item in loads[key].items:
            heapq.heappush(waiting, item)
        if not left[key]:
            unblock(key)

    def unblock(before: tuple[str, int]) -> None:
        for key in followers[before]:
            blocking[key] -= 1
            if blocking[key] == 0 and loads[key].ready <= clock:
                release(key)
            elif blocking[key] == 0:
                heapq.heappush(arrivals, (loads[key].ready, numbers[key], key))

    def fill_queue() -> None:
        while waiting and len(queued) < credit:
            queued.append(heapq.heappop(waiting))

    while True:
        while arrivals and arrivals[0][0] <= clock:
            ready, _, key = heapq.heappop(arrivals)
            if credit > 1 and ready < clock:
                fill_queue()  # Earlier work is on the line by now, whatever its priority.
            release(key)
        next_ready, _, arriving = arrivals[0] if arrivals else (math.inf, 0, None)
        fill_queue()
        if not queued:
            if arriving is None:
                return _number(transfers) if preemptive else transfers
            clock = next_ready
            continue
        priority, step, seconds = queued.popleft()
        if arriving is not None and clock + seconds > next_ready:
            if preemptive:
                transfers.append(
                    Transfer(step.phase, step.bucket, step.chunk, step.chunks, clock, next_ready)
                )
                seconds -= next_ready - clock
            if preemptive or (
                loads[arriving].items
                and loads[arriving].items[0].priority < priority
                and clock + seconds - next_ready > overrun * seconds
            ):
                heapq.heappush(waiting, QueueItem(priority, step, seconds))
                clock = next_ready
                continue
        transfers.append(
            Transfer(step.phase, step.bucket, step.chunk, step.chunks, clock, clock + seconds)
        )
        clock += seconds
        key = (step.phase, step.bucket)
        left[key] -= 1
        if left[key] == 0:
            unblock(key)


def _number(pieces: list[Transfer]) -> list[Transfer]:
    """Joins transfers that were interrupted by nothing, and numbers the parts of the others."""
    joined: list[Transfer] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and (last.phase, last.bucket) == (piece.phase, piece.bucket):
            joined[-1] = dataclasses.replace(last, end=piece.end)
        else:
            joined.append(piece)
    total = collections.Counter((piece.phase, piece.bucket) for piece in joined)
    seen: collections.Counter[tuple[str, int]] = collections.Counter()
    numbered = []
    for piece in joined:
        key = (piece.phase, piece.bucket)
        numbered.append(dataclasses.replace(piece, chunk=seen[key], chunks=total[key]))
        seen[key] += 1
    return numbered
