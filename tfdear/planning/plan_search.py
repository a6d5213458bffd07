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

from tfdear.planning import alignment_bound, optimal_buckets, schedules
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.least_time import LeastTime
from tfdear.planning.line import Step
from tfdear.planning.line_fills import Carried
from tfdear.planning.optimal_buckets import Sums
from tfdear.planning.plan_dive import dive
from tfdear.planning.plan_tree import Found, PlanTree
from tfdear.planning.trace import Trace

__all__ = ["SearchResult", "lower_bound", "search", "search_with_bound"]

# Factors of the bound within which a plan is optimal, or near enough to end the next efforts.
_OPTIMAL = 1 + 1e-6
_NEAR = 1.003
_GOOD = 1.01
_ROUNDING = 1e-12
# Searches of the tree for a bound: parts that are distinguished, and choices that are compared.
_BOUND_SEARCHES = ((1, 400_000), (3, 20_000), (2, 20_000), (6, 30_000), (12, 30_000), (3, 200_000))
# Ways that a dive keeps, over all cuts.
_MOST_WAYS = 2000
_PHASES = ("reduce_scatter", "all_gather")


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Args:
        plan: The best plan that was found.
        time: Its iteration time, in seconds.
        bound: Seconds that no plan can beat.
    """

    plan: schedules.Plan
    time: float
    bound: float


def search(trace: Trace, costs: CommunicationCosts) -> schedules.Plan:
    """Returns the best plan for "dear" that was found.

    Use it as `Planned` does.

    Args:
        trace: The model with its measured times.
        costs: The measured network.
    """
    return search_with_bound(trace, costs).plan


def lower_bound(trace: Trace, costs: CommunicationCosts, time: float) -> float:
    """Returns seconds that no plan can beat.

    Use it to see how near a plan is to the optimum: the cheap bound if that is within 1 % of the
    plan's time; otherwise it is raised until it is, with limited effort.

    Args:
        trace: The model.
        costs: The network.
        time: Iteration time of the plan, in seconds.
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


def search_with_bound(trace: Trace, costs: CommunicationCosts) -> SearchResult:
    """Returns the best plan for "dear" that was found, with its time and a bound of all plans.

    Args:
        trace: The model with its measured times.
        costs: The measured network.
    """
    return _Search(trace, costs).run()


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
        built = dive(self._sums, self._costs, self._least_time, width, self._time)
        if built is not None:
            self._take(built.cuts, built.carried)

    def try_ideal_lists(self) -> None:
        """Tries the bucket lists that are optimal for an ideal queue."""
        for schedule in ("dear", "dear_barrier"):
            buckets = optimal_buckets.optimal_buckets(self._trace, self._costs, schedule)
            self._take_plan(schedules.make_plan(schedule, buckets, self._trace, self._costs))

    def align(self) -> None:
        """Raises the bound where transfers do not fit."""
        self._bound = alignment_bound.raised(self._sums, self._costs, self._bound, self._time)

    def search_plan(self, parts: int, most: int) -> None:
        """Searches the tree for a better plan."""
        tree = PlanTree(self._sums, self._costs, self._least_time, parts, plans_only=True)
        self._take_leaf(tree.search(self._time, most))

    def search_optimum(self, parts: int, most: int) -> None:
        """Searches the tree for the least time, and takes its plan if there is one."""
        self._search_tree(parts, self._time, most)

    def search_bound(self, parts: int, most: int) -> None:
        """Searches the tree for anything faster than the plan by more than the tolerance."""
        self._search_tree(parts, self._time / _GOOD * (1 + _ROUNDING), most)

    def _search_tree(self, parts: int, below: float, most: int) -> None:
        tree = PlanTree(self._sums, self._costs, self._least_time, parts)
        found = tree.search(below, most)
        self._bound = max(self._bound, found.bound)
        self._take_leaf(found)

    def _take_leaf(self, found: Found) -> None:
        if found.cuts is not None and found.carried is not None:
            self._take(found.cuts, found.carried)

    def _take(self, cuts: tuple[int, ...], carried: tuple[Carried, ...]) -> None:
        self._take_plan(_make_plan(self._sums, cuts, carried))

    def _take_plan(self, plan: schedules.Plan) -> None:
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
        steps += [Step(_PHASES[half], bucket, part, parts) for part in range(first, first + count)]
    return schedules.Plan(buckets, tuple(schedules.join_chunks(steps)), wait_for_all=False)
