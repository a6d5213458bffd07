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

# How often the distance between the bound and what may be possible is halved.
_STEPS = 6


def can_fit(sums: Sums, costs: CommunicationCosts, time: float) -> bool:
    """Returns whether the neighbours of some bucket list fit in an iteration of `time` seconds.

    Where none fits, every plan takes longer; see `docs/fusion.md`.
    """
    return bool((least_start_ups(sums, costs, time)[:, sums.layers] < math.inf).any())


def least_start_ups(sums: Sums, costs: CommunicationCosts, time: float) -> np.ndarray:
    """Returns the least start-ups of a bucket and of all in front of it that fit, in seconds.

    They are by the first layer of the bucket and the layer behind it. Infinity: none fit in an
    iteration of `time` seconds, so all plans with that bucket take longer.
    """
    scatter, both = costs.reduce_scatter, costs.reduce_scatter + costs.all_gather
    start_up, cut_cost = both.a, min(scatter.a, costs.all_gather.a)
    layers = sums.layers
    line = both.b * sums.bytes
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
        gathers = costs.all_gather.seconds(sums.bytes[cut + 1 :] - sums.bytes[cut])
        fit = gap <= margin
        for work in (scatters, scatters + gathers):
            fit |= (work - gap <= late) & (gap - work <= margin)
        added = np.where(fit & (margin >= 0), 0.0, np.where(margin >= cut_cost, cut_cost, math.inf))
        paid[cut, cut + 1 :] = (own + start_up + added).min(0)
    return paid


def raised(sums: Sums, costs: CommunicationCosts, bound: float, time: float) -> float:
    """Returns a bound that is better than `bound` where transfers do not fit.

    No plan can beat `bound` seconds, and some plan takes `time` seconds.
    """
    for _ in range(_STEPS):
        middle = (bound + time) / 2
        if can_fit(sums, costs, middle):
            time = middle
        else:
            bound = middle
    return bound
