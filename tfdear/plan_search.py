# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The plan with the shortest modelled iteration, near its lower bound. Imports no TensorFlow.

[Note: Search for a plan] A plan is a bucket list, the numbers of parts in which each half of a
bucket travels, and an order. Exact programmes give good bucket lists for queues that interrupt at
no cost (`optimal_buckets`). What interruptions cost, and how parts fit the gaps, is found by
playing plans: the most promising lists first, then steps from the best of them to neighbours that
differ in one cut or one number of parts, as long as these are better. The search ends at once where
a plan is as good as the lower bound, which is the rule where start-ups are short.
"""

import dataclasses
import math
import random
from collections.abc import Iterator, Sequence

from tfdear import schedules
from tfdear.cost_model import CommunicationCosts, LinearCost
from tfdear.line import Step, make_jobs, play
from tfdear.optimal_buckets import Sums, lower_bound, optimal_buckets, optimal_cuts
from tfdear.trace import Layer, Trace

__all__ = ["search"]

# A plan so near to the bound is as good as the bound.
_NEAR = 1.003
# Much is tried to get so near.
_GOOD = 1.01
_STEPS_OF_KICK = 3
_PLAYED_AFTER_KICK = 500
_MOST_WITH_KICKS = 12000
# Plans that are played at most: they cost a tenth of a millisecond to one each.
_MOST_PLAYED = 3000
# Bucket lists are also sought for start-ups that are so many times as long: real orders pay them
# more often than the ideal queue, or leave gaps that smaller buckets would fill.
_START_UPS = (1.0, 0.5, 0.25, 0.1, 2.0, 4.0)
_OVERRUNS = (1.0, 0.5, 0.25, 0.0)
# A part takes at least so many start-ups, so that cutting costs at most one in so many.
_START_UPS_OF_PART = (4.0, 16.0, 64.0)
_MOST_PARTS = 64


@dataclasses.dataclass(frozen=True)
class _Candidate:
    """A plan by what decides it.

    Args:
        cuts: First layer of each bucket, in backward order; the last is 0.
        scatters: In how many parts each bucket is reduce-scattered.
        gathers: In how many parts each is all-gathered.
        earliest_due_first: The order; see `line.make_jobs`.
        overrun: How patient the line is; see `line.play`.
    """

    cuts: tuple[int, ...]
    scatters: tuple[int, ...]
    gathers: tuple[int, ...]
    earliest_due_first: bool
    overrun: float


def search(trace: Trace, costs: CommunicationCosts) -> schedules.Plan:
    """Returns the best plan for "dear" that was found; see [Note: Search for a plan].

    Use it as `Planned` does. How far the plan is from the least possible time is known:
    `optimal_buckets.lower_bound`.

    Args:
        trace: The model with its measured times.
        costs: The measured network.
    """
    return _Search(trace, costs).run()


class _Search:
    def __init__(self, trace: Trace, costs: CommunicationCosts):
        self._trace = trace
        self._costs = costs
        self._sums = Sums.of(trace)
        bound = lower_bound(trace, costs)
        self._enough, self._good = bound * _NEAR, bound * _GOOD
        self._played = 0
        self._limit = _MOST_PLAYED
        self._time = math.inf
        self._best: _Candidate | None = None

    def run(self) -> schedules.Plan:
        seen = set()
        starts = []
        for cuts in self._lists():
            if cuts in seen:
                continue
            seen.add(cuts)
            starts.append(min(map(self._try, self._orders(cuts)), key=lambda start: start[0]))
            if self._time <= self._enough:
                break
        starts.sort(key=lambda start: start[0])
        for seconds, candidate in starts:
            self._descend(seconds, candidate)
        assert self._best is not None
        # Where neighbours do not help: from the best plan a few steps in any direction, and down.
        kicks = random.Random(0)
        while self._time > self._good and self._played < _MOST_WITH_KICKS:
            self._limit = self._played + _PLAYED_AFTER_KICK
            candidate = self._best
            for _ in range(_STEPS_OF_KICK):
                candidate = kicks.choice(list(self._neighbours(candidate)))
            self._descend(*self._try(candidate))
        return self._plan(self._best)

    def _lists(self) -> Iterator[tuple[int, ...]]:
        for factor in _START_UPS:
            costs = self._costs
            longer = dataclasses.replace(
                costs,
                reduce_scatter=LinearCost(costs.reduce_scatter.a * factor, costs.reduce_scatter.b),
                all_gather=LinearCost(costs.all_gather.a * factor, costs.all_gather.b),
            )
            yield tuple(optimal_cuts(self._trace, longer))
            if factor in (1.0, 0.25):
                yield tuple(b[-1] for b in optimal_buckets(self._trace, longer, "dear"))
            if factor == 1.0:
                yield tuple(b[-1] for b in optimal_buckets(self._trace, longer, "dear_barrier"))

    def _orders(self, cuts: tuple[int, ...]) -> Iterator[_Candidate]:
        whole = (1,) * len(cuts)
        parts = [whole]
        for start_ups in _START_UPS_OF_PART:
            cut = tuple(
                max(1, min(_MOST_PARTS, int(self._seconds(size) / (start_ups * self._start_up))))
                if self._start_up
                else _MOST_PARTS
                for size in self._sizes(cuts)
            )
            if cut not in parts:
                parts.append(cut)
        for gathers in parts:
            for scatters in {whole: None, gathers: None}:
                for earliest_due_first in (True, False):
                    for overrun in _OVERRUNS:
                        yield _Candidate(cuts, scatters, gathers, earliest_due_first, overrun)

    @property
    def _start_up(self) -> float:
        return max(self._costs.reduce_scatter.a, self._costs.all_gather.a)

    def _seconds(self, size: float) -> float:
        return max(self._costs.reduce_scatter.b, self._costs.all_gather.b) * size

    def _sizes(self, cuts: Sequence[int]) -> list[float]:
        ends = [self._sums.layers, *cuts[:-1]]
        return [
            float(self._sums.bytes[end] - self._sums.bytes[cut])
            for cut, end in zip(cuts, ends, strict=True)
        ]

    def _try(self, candidate: _Candidate) -> tuple[float, _Candidate]:
        """Plays a plan, and remembers the best."""
        self._played += 1
        trace, steps = self._play(candidate)
        plan = schedules.Plan(_alone(len(candidate.cuts)), tuple(steps), wait_for_all=False)
        seconds = schedules.execute(plan, trace, self._costs).iteration_time
        if seconds < self._time:
            self._time, self._best = seconds, candidate
        return seconds, candidate

    def _play(self, candidate: _Candidate) -> tuple[Trace, list[Step]]:
        """The steps over buckets, and the model as a trace whose layers are these buckets."""
        sums, cuts = self._sums, candidate.cuts
        ends = [sums.layers, *cuts[:-1]]
        ready = [float(sums.ready[cut]) for cut in cuts]
        layers = [
            Layer(
                "",
                int(sums.bytes[end] - sums.bytes[cut]),
                max(float(sums.forward[cut] - sums.forward[end]), 0.0),
                max(now - before, 0.0),
            )
            for cut, end, now, before in zip(cuts, ends, ready, [0.0, *ready[:-1]], strict=True)
        ]
        trace = Trace("buckets", tuple(reversed(layers)))
        jobs = make_jobs(
            "dear",
            _alone(len(cuts)),
            trace,
            self._costs,
            {"reduce_scatter": candidate.scatters, "all_gather": candidate.gathers},
            candidate.earliest_due_first,
        )
        played = play("dear", jobs, ready, preemptive=False, overrun=candidate.overrun)
        steps = [Step(t.phase, t.bucket, t.chunk, t.chunks) for t in played]
        return trace, schedules.join_chunks(steps)

    def _plan(self, candidate: _Candidate) -> schedules.Plan:
        ends = [self._sums.layers, *candidate.cuts[:-1]]
        buckets = tuple(
            tuple(range(end - 1, cut - 1, -1))
            for cut, end in zip(candidate.cuts, ends, strict=True)
        )
        return schedules.Plan(buckets, tuple(self._play(candidate)[1]), wait_for_all=False)

    def _descend(self, seconds: float, candidate: _Candidate) -> None:
        """Goes to better neighbours until there are none."""
        improved = True
        while improved:
            improved = False
            for neighbour in self._neighbours(candidate):
                if self._time <= self._enough or self._played >= self._limit:
                    return
                other, _ = self._try(neighbour)
                if other < seconds:
                    seconds, candidate, improved = other, neighbour, True
                    break

    def _neighbours(self, of: _Candidate) -> Iterator[_Candidate]:
        count = len(of.cuts)
        for overrun in _OVERRUNS:
            for earliest_due_first in (True, False):
                if (overrun, earliest_due_first) != (of.overrun, of.earliest_due_first):
                    yield dataclasses.replace(
                        of, overrun=overrun, earliest_due_first=earliest_due_first
                    )
        for bucket in range(count):
            for gathers in _others(of.gathers, bucket):
                yield dataclasses.replace(of, gathers=gathers)
            for scatters in _others(of.scatters, bucket):
                yield dataclasses.replace(of, scatters=scatters)
        ends = [self._sums.layers, *of.cuts[:-1]]
        for bucket, (cut, end) in enumerate(zip(of.cuts, ends, strict=True)):
            if bucket < count - 1:
                least = of.cuts[bucket + 1] + 1
                for distance in (1, 2, 4, 8, 16, 32):
                    for moved in (cut - distance, cut + distance):
                        if least <= moved < end:
                            cuts = (*of.cuts[:bucket], moved, *of.cuts[bucket + 1 :])
                            yield dataclasses.replace(of, cuts=cuts)
                yield self._without(of, bucket)
            if end - cut > 1:
                yield self._with(of, bucket, cut, end)

    @staticmethod
    def _without(of: _Candidate, bucket: int) -> _Candidate:
        """Merges a bucket with the one in front of it."""

        def merge(parts: tuple[int, ...]) -> tuple[int, ...]:
            merged = max(parts[bucket], parts[bucket + 1])
            return (*parts[:bucket], merged, *parts[bucket + 2 :])

        cuts = (*of.cuts[:bucket], *of.cuts[bucket + 1 :])
        return dataclasses.replace(
            of, cuts=cuts, scatters=merge(of.scatters), gathers=merge(of.gathers)
        )

    def _with(self, of: _Candidate, bucket: int, cut: int, end: int) -> _Candidate:
        """Splits a bucket where its bytes are halved, as nearly as layers allow."""
        sums = self._sums.bytes
        half = (sums[cut] + sums[end]) / 2
        place = min(range(cut + 1, end), key=lambda layer: abs(sums[layer] - half))

        def split(parts: tuple[int, ...]) -> tuple[int, ...]:
            return (*parts[: bucket + 1], *parts[bucket:])

        cuts = (*of.cuts[:bucket], place, *of.cuts[bucket:])
        return dataclasses.replace(
            of, cuts=cuts, scatters=split(of.scatters), gathers=split(of.gathers)
        )


def _alone(count: int) -> tuple[tuple[int, ...], ...]:
    return tuple((bucket,) for bucket in reversed(range(count)))


def _others(parts: tuple[int, ...], bucket: int) -> Iterator[tuple[int, ...]]:
    """The same numbers of parts but for one bucket's."""
    now = parts[bucket]
    for number in dict.fromkeys((1, now - 1, now + 1, 2 * now)):
        if 1 <= number <= _MOST_PARTS and number != now:
            yield (*parts[:bucket], number, *parts[bucket + 1 :])
