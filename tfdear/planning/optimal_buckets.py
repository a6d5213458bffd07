# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The search for the best bucket list. Imports no TensorFlow.

[Note: The dynamic programme] Cuts are placed from the last layer to the first. The layers behind a
cut affect those in front of it only through one or two numbers: when the line has finished the
urgent work (X), and until when the rest of the work fills it (S, or Y with the barrier). Every
schedule's iteration time grows with both, so of the ways to reach a cut only those matter that no
other beats in both. `docs/fusion.md` derives the recurrences and proves them.
"""

import dataclasses
import math

import numpy as np

from tfdear.planning.cost_model import CommunicationCosts, LinearCost
from tfdear.planning.trace import Trace


def optimal_buckets(trace: Trace, costs: CommunicationCosts, schedule: str) -> list[list[int]]:
    """Returns the buckets, in backward order, that make the modelled iteration shortest."""
    model = Sums.of(trace)
    if schedule == "sequential":  # Nothing overlaps, so one start-up is the least.
        cuts = [0]
    elif schedule == "wfbp":
        _, cuts = _one_number(model.ready, model, costs.all_reduce)
    elif schedule == "bytescheduler":
        _, cuts = _one_number(model.ready + model.forward, model, costs.all_reduce)
    else:
        cuts = _TwoNumbers(model, costs, schedule).cuts()
    return _from_cuts(len(trace.layers), cuts)


def lower_bound(trace: Trace, costs: CommunicationCosts) -> float:
    """Returns seconds that no iteration with the two halves of an all-reduce can beat.

    Whatever the bucket list, the order, the parts and the interruptions, both halves of the buckets
    in front of a cut occupy the line after the first of them is ready and before the forward pass
    reaches the cut; see `docs/fusion.md`.
    """
    model = Sums.of(trace)
    both_halves = costs.reduce_scatter + costs.all_gather
    line, _ = _one_number(model.ready + model.forward, model, both_halves)
    return max(line, float(model.ready[0] + model.forward[0]))


def _from_cuts(layers: int, cuts: list[int]) -> list[list[int]]:
    """Returns the bucket list whose buckets begin at the layers `cuts`, given from last to 0."""
    ends = [layers, *cuts[:-1]]
    return [list(range(end - 1, begin - 1, -1)) for end, begin in zip(ends, cuts, strict=True)]


@dataclasses.dataclass(frozen=True)
class Sums:
    """Sums over the layers, by cut position p = 0..L: a cut before layer p."""

    ready: np.ndarray  # When the gradients of layers p.. are computed.
    forward: np.ndarray  # Forward time of layers p.. .
    bytes: np.ndarray  # Size of layers ..p-1.

    @classmethod
    def of(cls, trace: Trace) -> "Sums":
        layers = trace.layers
        return cls(
            np.cumsum([0.0, *(layer.backward for layer in reversed(layers))])[::-1],
            np.cumsum([0.0, *(layer.forward for layer in reversed(layers))])[::-1],
            np.cumsum([0.0, *(layer.bytes for layer in layers)]),
        )

    @property
    def layers(self) -> int:
        return len(self.bytes) - 1


def _one_number(start: np.ndarray, model: Sums, cost: LinearCost) -> tuple[float, list[int]]:
    """Minimises value_1 of value_j = max(start_j, value_{j+1}) + cost_j; returns it and cuts."""
    count = model.layers
    value = np.full(count + 1, math.inf)
    value[count] = 0.0
    came_from = np.zeros(count + 1, dtype=int)
    for cut in range(count - 1, -1, -1):
        ends = slice(cut + 1, count + 1)
        seconds = cost.a + cost.b * (model.bytes[ends] - model.bytes[cut])
        reached = np.maximum(start[cut], value[ends]) + seconds
        best = int(np.argmin(reached))
        value[cut] = reached[best]
        came_from[cut] = cut + 1 + best
    cuts = [0]
    while came_from[cuts[-1]] < count:
        cuts.append(int(came_from[cuts[-1]]))
    return float(value[0]), cuts[::-1]


class _TwoNumbers:
    """The dynamic programme on pairs: (X, S) for dear, (X, Y) for dear_barrier."""

    def __init__(self, model: Sums, costs: CommunicationCosts, schedule: str):
        self._model = model
        self._scatter, self._gather = costs.reduce_scatter, costs.all_gather
        self._barrier = schedule == "dear_barrier"
        if self._barrier:  # No bucket list does better in one of the two numbers alone.
            self._least_x, _ = _one_number(model.ready, model, self._scatter)
            self._least_y, _ = _one_number(model.forward, model, self._gather)

    def cuts(self) -> list[int]:
        """Returns the best cuts: a rough search bounds what the exact one must look at."""
        bound, rough = self._search(math.inf, most=8)
        _, exact = self._search(bound, most=None)
        return exact or rough

    def _advance(self, x, other, at, cut):
        """Returns the pairs after one more bucket, from the cuts `at` to the cut `cut`."""
        size = self._model.bytes[at] - self._model.bytes[cut]
        scatter, gather = self._scatter.seconds(size), self._gather.seconds(size)
        x = np.maximum(self._model.ready[cut], x) + scatter
        if self._barrier:
            return x, np.maximum(self._model.forward[cut], other) + gather
        return x, np.maximum(x + self._model.forward[cut], other + scatter) + gather

    def _finish(self, x, other, cut):
        """Returns the iteration time if the layers in front of `cut` make one bucket."""
        x, other = self._advance(x, other, cut, 0)
        return x + other if self._barrier else other

    def _least(self, x, other, cut):
        """Returns a lower bound of the time if those layers make two buckets or more."""
        size = self._model.bytes[cut]
        scatter = 2 * self._scatter.a + self._scatter.b * size
        gather = 2 * self._gather.a + self._gather.b * size
        if self._barrier:
            least_x = np.maximum(x + scatter, self._least_x)
            return least_x + np.maximum(other + gather, self._least_y)
        return other + scatter + gather

    def _search(self, bound: float, most: int | None) -> tuple[float, list[int]]:
        """Returns the shortest iteration below `bound` and its cuts, or no cuts.

        With `most`, it keeps only the most promising pairs of each cut: fast, but not exact.
        """
        count = self._model.layers
        # The pairs of all cuts behind the current one, one after the other.
        x, other = np.zeros(1), np.zeros(1)
        at, parent = np.full(1, count), np.full(1, -1)
        best: list[int] = []
        time = float(self._finish(x, other, count)[0])
        if time < bound:
            bound, best = time, [0]
        for cut in range(count - 1, 0, -1):
            new_x, new_other = self._advance(x, other, at, cut)
            finish = self._finish(new_x, new_other, cut)
            source = int(np.argmin(finish))
            if finish[source] < bound:
                bound, best = float(finish[source]), [0, cut, *_trace_back(source, at, parent)]
            least = self._least(new_x, new_other, cut)
            kept = np.flatnonzero(least < bound)
            # In the order of the first number, a pair is beaten in both unless its second number
            # is smaller than all before it.
            kept = kept[np.lexsort((new_other[kept], new_x[kept]))]
            lowest = np.minimum.accumulate(new_other[kept])
            kept = kept[np.concatenate([[True], lowest[1:] < lowest[:-1]])[: len(kept)]]
            if most is not None and len(kept) > most:
                kept = kept[np.argsort(least[kept])[:most]]
            x = np.concatenate([x, new_x[kept]])
            other = np.concatenate([other, new_other[kept]])
            parent = np.concatenate([parent, kept])
            at = np.concatenate([at, np.full(len(kept), cut)])
        return bound, best[::-1]


def _trace_back(pair: int, at: np.ndarray, parent: np.ndarray) -> list[int]:
    """Returns the cuts that lead to a pair, from the front to the back, without the end."""
    cuts = []
    while parent[pair] >= 0:
        cuts.append(int(at[pair]))
        pair = int(parent[pair])
    return cuts
