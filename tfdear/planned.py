# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The bucket list with the shortest iteration in the model. Imports no TensorFlow.

[Note: The dynamic programme] Cuts are placed from the last layer to the first. All that the layers
behind a cut mean for those in front of it is one or two numbers: when the line is done with the
urgent work (X), and from when on the rest leaves no room (S, or Y with the barrier). Every
schedule's iteration time grows with both, so of the ways to reach a cut only those matter that no
other beats in both. `docs/fusion.md` derives the recurrences and proves them.
"""

import dataclasses
import math

import numpy as np

from tfdear import schedules
from tfdear.cost_model import CommunicationCosts, LinearCost
from tfdear.trace import Trace

__all__ = ["Planned"]


@dataclasses.dataclass(frozen=True)
class Planned:
    """Fuses gradients so that the modelled iteration is as short as it can be.

    Use it when the network's start-up time and the model's layer times are measured: large
    buckets save start-ups, small ones start earlier and free the next forward pass earlier, and
    this planner weighs the two exactly, for the schedule in use.

    Example:

    >>> from tfdear import cost_model, fusion
    >>> from tfdear.trace import Layer, Trace
    >>> trace = Trace("two", (Layer("a", 8, 1.0, 2.0), Layer("b", 8, 1.0, 2.0)))
    >>> fusion.Planned().buckets(trace, cost_model.ring(2, alpha=9.0, beta=0.25), "dear")
    [[1, 0]]

    Reference: `docs/fusion.md`; the problem is that of Zhang et al., "DeAR", section IV, and of
    Shi et al., "MG-WFBP", section 3.
    """

    needs_profile = True

    def buckets(
        self, trace: Trace, costs: CommunicationCosts | None, schedule: str
    ) -> list[list[int]]:
        """Returns the buckets in backward order.

        Args:
            trace: The model with its measured times.
            costs: The measured network.
            schedule: One of `tfdear.schedules.SCHEDULES`.

        Returns:
            Lists of layer indices, last layers first.

        Raises:
            ValueError: There are no costs, or the schedule is unknown.
        """
        if costs is None:
            raise ValueError(
                "Planned needs measured costs, and received None. Use FixedSize() until the "
                "network is measured."
            )
        if schedule not in schedules.SCHEDULES:
            raise ValueError(
                f"`schedule` must be one of {schedules.SCHEDULES}. Received: {schedule!r}"
            )
        model = _Model.of(trace)
        if schedule == "sequential":  # Nothing overlaps, so one start-up is the least.
            cuts = [0]
        elif schedule in ("wfbp", "bytescheduler"):
            cuts = _one_number(model, costs.all_reduce, schedule)
        else:
            cuts = _two_numbers(model, costs, schedule)
        return from_cuts(len(trace.layers), cuts)


def from_cuts(layers: int, cuts: list[int]) -> list[list[int]]:
    """Returns the bucket list whose buckets begin at the layers `cuts`, given from last to 0."""
    ends = [layers, *cuts[:-1]]
    return [list(range(end - 1, begin - 1, -1)) for end, begin in zip(ends, cuts, strict=True)]


@dataclasses.dataclass(frozen=True)
class _Model:
    """Sums over the layers, by cut position p = 0..L: a cut before layer p."""

    ready: np.ndarray  # When the gradients of layers p.. are there.
    forward: np.ndarray  # Forward time of layers p.. .
    bytes: np.ndarray  # Size of layers ..p-1.

    @classmethod
    def of(cls, trace: Trace) -> "_Model":
        layers = trace.layers
        backward = [layer.backward for layer in reversed(layers)]
        forward = [layer.forward for layer in reversed(layers)]
        size = [layer.bytes for layer in layers]
        return cls(
            np.concatenate([[0.0], np.cumsum(backward)])[::-1],
            np.concatenate([[0.0], np.cumsum(forward)])[::-1],
            np.concatenate([[0.0], np.cumsum(size)]),
        )

    @property
    def layers(self) -> int:
        return len(self.bytes) - 1


def _one_number(model: _Model, cost: LinearCost, schedule: str) -> list[int]:
    """Cuts for a schedule whose past is one number, the smaller the better."""
    start = model.ready if schedule == "wfbp" else model.ready + model.forward
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
    return cuts[::-1]


def _two_numbers(model: _Model, costs: CommunicationCosts, schedule: str) -> list[int]:
    """Cuts for the decoupled schedules, whose past is a pair of numbers."""
    rough, bound = _search(model, costs, schedule, math.inf, most=4)
    exact, _ = _search(model, costs, schedule, bound, most=None)
    return exact or rough


def _search(
    model: _Model,
    costs: CommunicationCosts,
    schedule: str,
    bound: float,
    most: int | None,
) -> tuple[list[int], float]:
    """Runs the dynamic programme on pairs that can still beat `bound`.

    With `most`, it keeps only that many pairs per cut: fast, and an upper bound.
    """
    scatter, gather = costs.reduce_scatter, costs.all_gather
    count = model.layers
    rest_x, rest_s = _least_rest(model, costs, schedule)
    # Pairs of all cuts behind the current one, one after the other.
    x, s = np.zeros(1), np.zeros(1)
    at = np.full(1, count)
    parent = np.full(1, -1)
    for cut in range(count - 1, -1, -1):
        size = model.bytes[at] - model.bytes[cut]
        scatter_seconds = scatter.a + scatter.b * size
        gather_seconds = gather.a + gather.b * size
        new_x = np.maximum(model.ready[cut], x) + scatter_seconds
        if schedule == "dear":
            new_s = np.maximum(new_x + model.forward[cut], s + scatter_seconds) + gather_seconds
            least = np.maximum(new_x + rest_x[cut], new_s + rest_s[cut])
        else:
            new_s = np.maximum(model.forward[cut], s) + gather_seconds
            least = (new_x + rest_x[cut]) + (new_s + rest_s[cut])
        good = np.flatnonzero(least < bound)
        # Of equal first numbers the smaller second one comes first; then a pair is worth keeping
        # if its second number is smaller than all before it.
        order = good[np.lexsort((new_s[good], new_x[good]))]
        lowest = np.minimum.accumulate(new_s[order])
        order = order[np.concatenate([[True], lowest[1:] < lowest[:-1]])] if len(order) else order
        if most is not None and len(order) > most:
            order = order[np.argsort(least[order])[:most]]
        if cut == 0:
            break
        x = np.concatenate([x, new_x[order]])
        s = np.concatenate([s, new_s[order]])
        parent = np.concatenate([parent, order])
        at = np.concatenate([at, np.full(len(order), cut)])
    if not len(order):
        return [], math.inf
    final = new_s[order] if schedule == "dear" else new_x[order] + new_s[order]
    best = int(np.argmin(final))
    cuts = [0]
    pair = int(order[best])
    while parent[pair] >= 0:
        cuts.append(int(at[pair]))
        pair = int(parent[pair])
    return cuts[::-1], float(final[best])


def _least_rest(
    model: _Model, costs: CommunicationCosts, schedule: str
) -> tuple[np.ndarray, np.ndarray]:
    """Lower bounds, by cut, on what the layers in front of it still add to each number."""
    scatter, gather = costs.reduce_scatter, costs.all_gather
    in_front = model.bytes
    some = np.arange(model.layers + 1) > 0  # At cut 0 nothing is left to add.
    all_scatter = some * (scatter.a + scatter.b * in_front)
    all_gather = some * (gather.a + gather.b * in_front)
    if schedule == "dear":
        return np.zeros_like(all_scatter), all_scatter + all_gather
    return all_scatter, all_gather
