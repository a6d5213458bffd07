# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""All plans as a tree: the best of them, and a lower bound. Imports no TensorFlow.

[Note: The tree of plans] A node is a bucket list down to a cut, and the state of the line at some
time: which halves wait, whole or in part. Each child adds the next cut, and what the line carries
until that bucket is ready (`line_fills`). Once all are ready, the line carries what is left, front
first; nothing is faster, so the iteration time of a leaf is known. `least_time` gives a lower bound
for all leaves below a node. Nodes are expanded best first: the bound of the best node that is left
is a bound of all plans. Some nodes are relaxations, more than plans can do, for example where many
buckets wait; their leaves only give bounds.
"""

import dataclasses
import heapq
import itertools
import math
from collections.abc import Iterator

import numpy as np

from tfdear.planning.alignment_bound import least_start_ups
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.least_time import LeastTime
from tfdear.planning.line_fills import Bucket, Carried, Fills, Half, all_carried, everything_of
from tfdear.planning.optimal_buckets import Sums

# Where more buckets wait than the first, numbers of parts are not distinguished; than the second,
# halves are cut at no cost.
_MOST_WITH_PARTS = 3
_MOST_WITH_START_UPS = 6


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search of the tree found: a bound, and the best leaf if it came to one."""

    bound: float  # Seconds that no plan can beat, and that the leaf takes.
    cuts: tuple[int, ...] | None = None  # First layer of each bucket of the leaf.
    carried: tuple[Carried, ...] | None = None  # By the line, in order, if the leaf is a plan.


class PlanTree:
    """The tree for one model and one network, whose bounds are given.

    Halves in up to `parts` parts are distinguished. With 1 they may be cut anywhere, which costs
    one start-up. `plans_only` leaves out relaxations: a bound is then only one of the plans that
    are left.
    """

    def __init__(
        self,
        sums: Sums,
        costs: CommunicationCosts,
        least_time: LeastTime,
        parts: int,
        plans_only: bool = False,
    ):
        self._sums, self._least_time = sums, least_time
        self._ready, self._forward, self._bytes = (
            values.tolist() for values in (sums.ready, sums.forward, sums.bytes)
        )
        self._costs = costs
        self._halves = (costs.reduce_scatter, costs.all_gather)
        self._start_ups = (costs.reduce_scatter.a, costs.all_gather.a)
        self._both = costs.reduce_scatter + costs.all_gather
        self._parts, self._plans_only = parts, plans_only
        self._num_choices = 0
        # [begin, end]: what the line needs for a bucket and all in front of it, at least.
        layers = sums.layers
        self._paid = np.zeros((layers + 1, layers + 1))
        self._fits = math.inf

    def search(self, below: float, most: int) -> Found:
        """Expands nodes, best first, until the best leaf is found or no node is left.

        Plans that take at least `below` seconds are ignored; `most` choices are compared at most.
        """
        if below < math.inf:
            paid = least_start_ups(self._sums, self._costs, below * (1 + 1e-12))
            self._paid = paid + self._both.b * self._sums.bytes
            self._fits = below
        tick = itertools.count()
        heap: list = [(0.0, False, 0, 0.0, self._sums.layers, (), (), ((), ()))]
        self._num_choices = 0
        while heap:
            bound, _, _, time, cut, waiting, cuts, chain = heapq.heappop(heap)
            if cut == 0:
                return Found(bound, cuts, None if chain is None else all_carried(chain, waiting))
            if self._num_choices >= most:
                return Found(bound)
            for least, at, new, after, added in self._children(time, cut, waiting, cuts, below):
                steps = None if chain is None or added is None else (chain, added)
                order = (max(least, bound), steps is None, -next(tick))
                heapq.heappush(heap, (*order, at, new, after, (*cuts, new), steps))
        return Found(below)

    def _children(self, time, cut, waiting, cuts, below) -> Iterator:
        """The nodes for every next cut: bound, time, cut, what waits, what was carried."""
        least = self._bounds(time, cut, waiting)
        work = sum(bucket.scatter.time + bucket.gather.time for bucket in waiting)
        self._num_choices += cut
        for new in np.flatnonzero(least < below).tolist():
            bytes = self._bytes[cut] - self._bytes[new]
            halves = [Half(cost.seconds(bytes), 1, 1) for cost in self._halves]
            bucket = Bucket(self._forward[new], len(cuts), *halves)
            ready, bound = self._ready[new], float(least[new])
            if ready <= time or not waiting:
                yield bound, max(time, ready), new, (bucket, *waiting), ()
            elif time + work <= ready:
                yield bound, ready, new, (bucket,), everything_of(waiting)
            elif len(waiting) > _MOST_WITH_START_UPS:
                if not self._plans_only:
                    yield bound, ready, new, (bucket, *_preempted(waiting, ready - time)), None
            else:
                parts, whole, exact = self._parts, waiting, True
                if len(waiting) > _MOST_WITH_PARTS and parts > 1:
                    parts, whole = 1, tuple(_divisible(old) for old in waiting)
                    exact = whole == waiting
                choices = Fills(ready, self._start_ups, parts)
                for at, left, carried in choices.of(ready - time, whole):
                    carried = carried if exact else None
                    self._num_choices += 1
                    if self._plans_only and carried is None:
                        continue
                    after = (bucket, *left)
                    value = _value(at, after)
                    front = float(self._paid[new, cut]) - halves[0].seconds - halves[1].seconds
                    bound = self._least_time.of_cut(new, value)
                    if bound < below and value + front <= self._fits:
                        yield bound, at, new, after, carried

    def _bounds(self, time, cut, waiting) -> np.ndarray:
        """The least iteration time by the next cut, if cuts on the line cost nothing until then."""
        size = self._sums.bytes
        begin = np.maximum(self._sums.ready[:cut], time)
        value = begin + self._sums.forward[:cut]
        work = 0.0
        for bucket in waiting:
            work += bucket.scatter.time + bucket.gather.time
            left = np.maximum(work - (begin - time), 0.0)
            value = np.maximum(value, begin + left + bucket.forward)
        fits = value + self._paid[:cut, cut] <= self._fits
        value = value + self._both.a + self._both.b * (size[cut] - size[:cut])
        return np.where(fits, self._least_time.of_cuts(value), math.inf)


def _value(time: float, waiting: tuple[Bucket, ...]) -> float:
    """Iteration time if from `time` on the line only carries what waits."""
    value = 0.0
    for bucket in waiting:
        time += bucket.scatter.time + bucket.gather.time
        value = max(value, time + bucket.forward)
    return value


def _divisible(bucket: Bucket) -> Bucket:
    """The bucket, whose halves that were cut into parts may be cut anywhere."""
    halves = (
        Half(half.time, 1, 0) if half.parts > 1 else half
        for half in (bucket.scatter, bucket.gather)
    )
    return Bucket(bucket.forward, bucket.number, *halves)


def _preempted(waiting: tuple[Bucket, ...], room: float) -> Iterator[Bucket]:
    """What waits when the most urgent was carried, if everything may be cut anywhere for free."""
    for bucket in waiting:
        halves = []
        for half in (bucket.scatter, bucket.gather):
            done = min(half.time, room)
            room -= done
            left = half.time - done
            halves.append(Half(left, int(left > 0), 0))
        if halves[1].left:
            yield Bucket(bucket.forward, bucket.number, *halves)
