# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Whether bucket lists exist whose transfers fit together. Imports no TensorFlow.

[Note: Alignment] In a plan that takes T seconds, every bucket has a margin: T minus the least time
that it and all buckets in front of it need once it is ready. From then on, the line may spend at
most that margin on anything else. When the next bucket is ready, whatever is on the line must end
within that bucket's margin. Until then the line has carried nothing of the earlier bucket, or its
reduce-scatter, or both halves, up to its margin; or a half in parts, which costs a start-up of the
margin. The bucket lists in which all neighbours satisfy this are searched from the front to the
back; if there is none, no plan takes T seconds.
"""

import math

import numpy as np

from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.optimal_buckets import Sums

__all__ = ["can_fit", "least_start_ups", "raised"]

# How often the distance between the bound and what may be possible is halved.
_STEPS = 6


def can_fit(sums: Sums, costs: CommunicationCosts, time: float) -> bool:
    """Returns whether the neighbours of some bucket list fit in an iteration of this length.

    Use it to bound plans: where none fits, every plan takes longer; see `docs/fusion.md`.

    Args:
        sums: The model.
        costs: The network.
        time: The iteration time, in seconds.
    """
    return bool((least_start_ups(sums, costs, time)[:, sums.layers] < math.inf).any())


def least_start_ups(sums: Sums, costs: CommunicationCosts, time: float) -> np.ndarray:
    """Returns the least start-ups of a bucket and of all in front of it that fit, in seconds.

    Use it to exclude plans with that bucket, which would take longer.

    Args:
        sums: The model.
        costs: The network.
        time: The iteration time, in seconds.

    Returns:
        By the first layer of the bucket and the layer behind it; infinity if none fit.
    """
    scatter, gather = costs.reduce_scatter, costs.all_gather
    start_up, cut_cost = scatter.a + gather.a, min(scatter.a, gather.a)
    layers = sums.layers
    line = (scatter.b + gather.b) * sums.bytes
    # The margin of a bucket [begin, end) is room[begin] - line[end], less the start-ups that are
    # paid from it to the front. Rounding must not make a list impossible.
    room = time * (1 + 1e-12) - sums.ready - sums.forward
    # [begin, end]: the least start-ups from this bucket to the front, in seconds.
    paid = np.full((layers + 1, layers + 1), math.inf)
    paid[0, 1:] = np.where(room[0] - line[1:] >= start_up, start_up, math.inf)
    for cut in range(1, layers):
        starts = np.flatnonzero(paid[:cut, cut] < math.inf)
        if not len(starts):
            continue
        own = paid[starts, cut][:, None]
        late = room[starts][:, None] - line[cut] - own
        gap = (sums.ready[starts] - sums.ready[cut])[:, None]
        margin = room[cut] - line[cut + 1 :] - own - start_up
        scatters = scatter.seconds(sums.bytes[cut + 1 :] - sums.bytes[cut])
        both = scatters + gather.seconds(sums.bytes[cut + 1 :] - sums.bytes[cut])
        fit = gap <= margin
        for work in (scatters, both):
            fit |= (work - gap <= late) & (gap - work <= margin)
        added = np.where(fit & (margin >= 0), 0.0, np.where(margin >= cut_cost, cut_cost, math.inf))
        paid[cut, cut + 1 :] = (own + start_up + added).min(0)
    return paid


def raised(sums: Sums, costs: CommunicationCosts, bound: float, time: float) -> float:
    """Returns a bound that is better than `bound` where transfers do not fit.

    Args:
        sums: The model.
        costs: The network.
        bound: Seconds that no plan can beat.
        time: Iteration time of some plan, in seconds.
    """
    for _ in range(_STEPS):
        middle = (bound + time) / 2
        if can_fit(sums, costs, middle):
            time = middle
        else:
            bound = middle
    return bound
