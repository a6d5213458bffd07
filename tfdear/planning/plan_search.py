# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The plan with the shortest modelled iteration, near its lower bound. Imports no TensorFlow.

[Note: Search for a plan] A plan is a bucket list, the number of parts in which each half of a
bucket is sent, and an order. The dive (`plan_dive`) makes one in milliseconds, usually near the
cheap lower bound (`optimal_buckets.lower_bound`). Where it is not, start-ups are long: then the
bound is raised by their cost where transfers do not fit (`alignment_bound`), and the tree of all
plans (`plan_tree`) proves that nothing is faster, or finds a faster plan.
"""

import dataclasses
import math
from collections.abc import Callable

from tfdear.base.names import HALVES, SCHEDULES_IN_HALVES
from tfdear.planning import alignment_bound, optimal_buckets, schedules
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.least_time import LeastTime
from tfdear.planning.line import Step
from tfdear.planning.line_fills import Carried
from tfdear.planning.optimal_buckets import Sums
from tfdear.planning.plan_dive import Dive
from tfdear.planning.plan_tree import PlanTree
from tfdear.planning.trace import Trace

# Factors of the bound within which a plan is optimal, or near enough to end the next efforts.
_OPTIMAL = 1 + 1e-6
_NEAR = 1.003
_GOOD = 1.01
_ROUNDING = 1e-12
# Searches of the tree for a bound: parts that are distinguished, and choices that are compared.
_BOUND_SEARCHES = ((1, 400_000), (3, 20_000), (2, 20_000), (6, 30_000), (12, 30_000), (3, 200_000))
# Ways that a dive keeps, over all cuts.
_MOST_WAYS = 2000


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """What a search found."""

    plan: schedules.Plan  # The best that was found.
    time: float  # Its iteration time, in seconds.
    bound: float  # Seconds that no plan can beat.


def search(trace: Trace, costs: CommunicationCosts) -> SearchResult:
    """Searches for the best plan for "dear"."""
    return _Search(trace, costs).run()


def lower_bound(trace: Trace, costs: CommunicationCosts, time: float) -> float:
    """Returns seconds that no plan can beat, to see how near one that takes `time` seconds is.

    It is the cheap bound if that is within 1 % of the plan's time; otherwise it is raised until it
    is, with limited effort.
    """
    bound = optimal_buckets.lower_bound(trace, costs)
    if time <= _GOOD * bound:
        return bound
    sums = Sums.of(trace)
    bound = alignment_bound.raised(sums, costs, bound, time)
    least_time = LeastTime(sums, costs)
    for parts, most in _BOUND_SEARCHES:
        if time <= _GOOD * bound:
            break
        below = time / _GOOD * (1 + _ROUNDING)
        bound = max(bound, PlanTree(sums, costs, least_time, parts).search(below, most).bound)
    return bound


class _Search:
    """The best plan so far and the bound, brought together with increasing effort."""

    def __init__(self, trace: Trace, costs: CommunicationCosts):
        self._trace, self._costs = trace, costs
        self._sums = Sums.of(trace)
        self._least_time = LeastTime(self._sums, costs)
        self._bound = optimal_buckets.lower_bound(trace, costs)
        self._time = math.inf
        self._plan: schedules.Plan | None = None

    def run(self) -> SearchResult:
        for factor, effort, arguments in _EFFORTS:
            if self._time > factor * self._bound or self._plan is None:
                effort(self, *arguments)
        assert self._plan is not None
        return SearchResult(self._plan, self._time, self._bound)

    def dive(self, width: int) -> None:
        """Dives for a better plan; with many layers each way takes longer, so fewer are kept."""
        width = min(width, max(width // 8, 8, _MOST_WAYS // self._sums.layers))
        built = Dive(self._sums, self._costs, self._least_time).run(width, self._time)
        if built is not None:
            self._take(_make_plan(self._sums, built.cuts, built.carried))

    def try_ideal_lists(self) -> None:
        """Tries the bucket lists that are optimal for an ideal queue."""
        for schedule in SCHEDULES_IN_HALVES:
            buckets = optimal_buckets.optimal_buckets(self._trace, self._costs, schedule)
            self._take(schedules.make_plan(schedule, buckets, self._trace, self._costs))

    def align(self) -> None:
        """Raises the bound where transfers do not fit."""
        self._bound = alignment_bound.raised(self._sums, self._costs, self._bound, self._time)

    def search_plan(self, parts: int, most: int) -> None:
        """Searches the tree for a better plan."""
        self._search_tree(parts, self._time, most, plans_only=True)

    def search_optimum(self, parts: int, most: int) -> None:
        """Searches the tree for the least time, and takes its plan if there is one."""
        self._search_tree(parts, self._time, most)

    def search_bound(self, parts: int, most: int) -> None:
        """Searches the tree for anything faster than the plan by more than the tolerance."""
        self._search_tree(parts, self._time / _GOOD * (1 + _ROUNDING), most)

    def _search_tree(self, parts: int, below: float, most: int, plans_only: bool = False) -> None:
        tree = PlanTree(self._sums, self._costs, self._least_time, parts, plans_only)
        found = tree.search(below, most)
        if not plans_only:
            self._bound = max(self._bound, found.bound)
        if found.cuts is not None and found.carried is not None:
            self._take(_make_plan(self._sums, found.cuts, found.carried))

    def _take(self, plan: schedules.Plan) -> None:
        time = schedules.execute(plan, self._trace, self._costs).iteration_time
        if time < self._time:
            self._plan, self._time = plan, time


# What is tried in turn, the cheap and promising first, until the plan is within the given factor of
# the bound. Arguments are the ways that a dive keeps, or the parts and choices of a search.
_EFFORTS: tuple[tuple[float, Callable[..., None], tuple[int, ...]], ...] = (
    (math.inf, _Search.dive, (1,)),
    (_OPTIMAL, _Search.try_ideal_lists, ()),
    (_NEAR, _Search.align, ()),
    (_NEAR, _Search.search_optimum, (1, 5_000)),
    (_GOOD, _Search.dive, (8,)),
    (_GOOD, _Search.search_bound, (1, 400_000)),
    (_GOOD, _Search.dive, (64,)),
    (_GOOD, _Search.search_plan, (2, 10_000)),
    (_GOOD, _Search.search_bound, (3, 20_000)),
    (_GOOD, _Search.search_plan, (4, 20_000)),
    (_GOOD, _Search.search_bound, (2, 20_000)),
    (_GOOD, _Search.search_plan, (8, 30_000)),
    (_GOOD, _Search.search_bound, (6, 30_000)),
    (_GOOD, _Search.search_bound, (12, 30_000)),
    (_GOOD, _Search.dive, (256,)),
    (_GOOD, _Search.search_plan, (4, 200_000)),
    (_GOOD, _Search.search_bound, (3, 200_000)),
)


def _make_plan(sums: Sums, cuts: tuple[int, ...], carried: tuple[Carried, ...]) -> schedules.Plan:
    ends = (sums.layers, *cuts[:-1])
    buckets = tuple(tuple(range(end - 1, cut - 1, -1)) for cut, end in zip(cuts, ends, strict=True))
    steps: list[Step] = []
    sent: dict[tuple[int, int], int] = {}
    for half, bucket, count, parts in carried:
        first = sent.get((half, bucket), 0)
        sent[half, bucket] = first + count
        steps += [Step(HALVES[half], bucket, part, parts) for part in range(first, first + count)]
    return schedules.Plan(buckets, tuple(schedules.join_chunks(steps)), wait_for_all=False)
