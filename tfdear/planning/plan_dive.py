# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A plan that is usually good, made bucket by bucket. Imports no TensorFlow.

[Note: The dive] For every cut, from the last layer to the first, one or a few of the ways to reach
it are kept: those with the smallest lower bound of the iteration time (`least_time`) and, of
equally good ones, those whose work ends first. Until the next bucket is ready the line carries what
waits, the most urgent first; what does not fit continues beyond that time, waits for the next gap,
or is sent in the number of parts that fits best. So nothing that can be carried is overtaken by
something less urgent.
"""

import dataclasses
import math

import numpy as np

from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.least_time import LeastTime
from tfdear.planning.line_fills import DONE, Bucket, Carried, Half, all_carried, put
from tfdear.planning.optimal_buckets import Sums

# Numbers of parts in which a half may be sent; the engine takes any number.
_PARTS = (2, 3, 4, 6, 9, 16, 32)
# Weight of the end of the work: it decides between bounds that are almost equal.
_LATER_WEIGHT = 1e-7
_WAIT, _CROSS, _CUT = range(3)


@dataclasses.dataclass(frozen=True)
class Built:
    """A plan."""

    cuts: tuple[int, ...]  # First layer of each bucket, in backward order.
    carried: tuple[Carried, ...]  # What the line carries, in order.


@dataclasses.dataclass(frozen=True)
class _Node:
    """A way to a cut: when the line is free, what waits then, and how this was reached."""

    time: float
    waiting: tuple[Bucket, ...]
    cuts: tuple[int, ...]
    chain: tuple  # The chain of the node before, and what was carried since.


class Dive:
    """Makes plans for one model and one network, whose bounds are given."""

    def __init__(self, sums: Sums, costs: CommunicationCosts, least_time: LeastTime):
        self._sums, self._least_time = sums, least_time
        self._scatter, self._gather = costs.reduce_scatter, costs.all_gather

    def run(self, width: int, below: float = math.inf) -> Built | None:
        """Makes a plan that takes less than `below` seconds, if there is one.

        See [Note: The dive]; `width` ways to each cut are kept.
        """
        layers = self._sums.layers
        # By kept way and cut: how good it is (less is better), the least iteration time, the node
        # and the cut that it comes from, and what was chosen.
        shape = (width, layers)
        keys, least = np.full(shape, math.inf), np.full(shape, math.inf)
        node_of, previous_cut = np.full(shape, -1), np.full(shape, -1)
        choices = np.zeros((4, *shape), int)
        nodes: list[_Node] = []
        for cut in range(layers, 0, -1):
            if cut == layers:
                starts = [(0.0, _Node(0.0, (), (), ()))]
            else:
                starts = [
                    (float(least[way, cut]), self._follow(nodes, node_of, choices, way, cut))
                    for way in np.flatnonzero(keys[:, cut] < math.inf).tolist()
                ]
            for bound_so_far, node in starts:
                bounds, works, chosen = self._children(node, cut)
                bounds = np.maximum(bounds, bound_so_far)
                key = np.where(bounds < below, bounds + _LATER_WEIGHT * works, math.inf)
                # Replaces the worst; but only one way from each previous cut is kept, because
                # others would hardly differ.
                alike = previous_cut[:, :cut] == cut
                slot = np.where(alike.any(0), alike.argmax(0), keys[:, :cut].argmax(0))
                new = np.flatnonzero(key < keys[slot, np.arange(cut)])
                slot = slot[new]
                keys[slot, new], least[slot, new] = key[new], bounds[new]
                node_of[slot, new], previous_cut[slot, new] = len(nodes), cut
                choices[:, slot, new] = chosen[:, new]
                nodes.append(node)
        way = int(keys[:, 0].argmin())
        if keys[way, 0] == math.inf:
            return None
        end = self._follow(nodes, node_of, choices, way, 0)
        return Built(end.cuts, all_carried(end.chain, end.waiting))

    def _children(self, node: _Node, cut: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """By next cut: the bound, the end of the work, and the best choice, as `_follow` takes it.

        The most urgent halves are carried as long as they fit. The next one then waits, is carried
        beyond the time, or is sent in parts. Each choice changes by the same amount what must be
        done until a waiting bucket is gathered and the forward pass from there on is computed.
        """
        sums = self._sums
        begin = np.maximum(sums.ready[:cut], node.time)
        room = begin - node.time
        size = sums.bytes[cut] - sums.bytes[:cut]
        own = self._scatter.a + self._gather.a + (self._scatter.b + self._gather.b) * size
        forward = begin + sums.forward[:cut] + own
        halves = [
            (bucket.forward, which, half)
            for bucket in node.waiting
            for which, half in enumerate((bucket.scatter, bucket.gather))
            if half.left
        ]
        if not halves:
            return self._least_time.of_cuts(forward), begin + own, np.zeros((4, cut))
        times = np.array([half.time for _, _, half in halves])
        total = np.concatenate([[0.0], np.cumsum(times)])
        # By half: the longest time until a later gather is done and the rest computed.
        most = np.array([bucket_forward for bucket_forward, _, _ in halves]) + total[1:]
        most = np.maximum.accumulate(most[::-1])[::-1]
        done = np.searchsorted(total[1:], room, side="right")
        some = np.minimum(done, len(halves) - 1)
        is_next = done < len(halves)  # Otherwise nothing waits any more.
        left = np.where(is_next, room - total[some], 0.0)
        pending = np.where(is_next, most[some] - total[some], -math.inf)
        waits = np.where(is_next, total[-1] - total[some], 0.0)
        continues = is_next & (left > 0)
        # It waits, or continues beyond the time.
        over = np.maximum(times[some] - left, 0.0)
        values = [
            np.maximum(forward, begin + own + pending),
            np.where(continues, np.maximum(forward + over, begin + own - left + pending), math.inf),
        ]
        works = [begin + own + waits, np.where(continues, begin + own - left + waits, math.inf)]
        # It is sent in parts: as many as fit, or one more.
        unit, number = (by_half[some] for by_half in self._parts(halves))
        fit = np.floor(left[:, None] / unit)
        fit = np.concatenate([fit, fit + 1], axis=1)
        unit, number = np.tile(unit, 2), np.tile(number, 2)
        possible = (fit >= 1) & (fit < number) & continues[:, None]
        late = np.maximum(fit * unit - left[:, None], 0.0)
        # What all others wait for in addition: start-ups, minus what is done.
        added = unit * number - times[some][:, None] - fit * unit + late
        work = np.where(possible, (begin + own + waits)[:, None] + added, math.inf)
        value = np.maximum(forward[:, None] + late, (begin + own + pending)[:, None] + added)
        value = np.where(possible, value, math.inf)
        cuts = np.arange(cut)
        picks = (work.argmin(axis=1), value.argmin(axis=1))
        for pick in picks:
            values.append(value[cuts, pick])
            works.append(work[cuts, pick])
        bounds, ends = self._least_time.of_cuts(np.stack(values)), np.stack(works)
        best = np.argmin(bounds + _LATER_WEIGHT * ends, axis=0)
        pick = np.where(best == _CUT, *picks)
        kind = np.minimum(best, _CUT)
        count = np.where(kind == _CUT, fit[cuts, pick], 0)
        choices = np.stack([done, kind, number[cuts, pick], count])
        return bounds[best, cuts], ends[best, cuts], choices

    def _parts(self, halves) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of a part, and parts that are left, by half and number of parts in all."""
        units, counts = np.empty((len(halves), len(_PARTS))), np.empty((len(halves), len(_PARTS)))
        numbers = np.array(_PARTS, dtype=float)
        for row, (_, which, half) in enumerate(halves):
            if half.parts > 1:
                units[row], counts[row] = half.seconds, half.left
            else:
                start_up = (self._scatter.a, self._gather.a)[which]
                units[row] = start_up + (half.seconds - start_up) / numbers
                counts[row] = numbers
        # A half that costs nothing can have any number of parts.
        return np.maximum(units, 1e-30), counts

    def _follow(self, nodes, node_of, choices, way: int, new: int) -> _Node:
        """The node that a way leads to."""
        node = nodes[node_of[way, new]]
        cut = node.cuts[-1] if node.cuts else self._sums.layers
        done, kind, parts, count = choices[:, way, new].tolist()
        begin = max(float(self._sums.ready[new]), node.time)
        left = begin - node.time
        carried: list[Carried] = []
        live = node.waiting
        for _ in range(done):
            bucket = live[0]
            half = bucket.half
            left -= half.time
            carried.append(Carried(bucket.next, bucket.number, half.left, half.parts))
            live = put(live, 0, bucket.after(DONE))
        if live and kind != _WAIT:
            bucket = live[0]
            half, which = bucket.half, bucket.next
            if kind == _CROSS:
                count, rest = half.left, DONE
            else:
                if half.parts <= 1:
                    half = half.cut(parts, (self._scatter.a, self._gather.a)[which])
                rest = Half(half.seconds, half.left - count, half.parts)
            begin += max(half.seconds * count - left, 0.0)
            carried.append(Carried(which, bucket.number, count, half.parts))
            live = put(live, 0, bucket.after(rest))
        bytes = float(self._sums.bytes[cut] - self._sums.bytes[new])
        halves = (Half(cost.seconds(bytes), 1, 1) for cost in (self._scatter, self._gather))
        bucket = Bucket(float(self._sums.forward[new]), len(node.cuts), *halves)
        chain = (node.chain, tuple(carried))
        return _Node(begin, (bucket, *live), (*node.cuts, new), chain)
