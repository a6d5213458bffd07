# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The least iteration time when only some cuts are chosen. Imports no TensorFlow."""

import math

import numpy as np

from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.optimal_buckets import Sums

# Numbers of buckets in front of a cut that are distinguished.
_COLUMNS = 24


class LeastTime:
    """Bounds the iteration time over all bucket lists for the layers in front of a cut.

    Let the iteration take at least `value` with the buckets behind the cut alone. The layers in
    front become n buckets, for some n: both halves of these occupy the line as well, which adds to
    `value`; and the iteration takes at least as long as with these n buckets on a free line; see
    `docs/fusion.md`.
    """

    def __init__(self, sums: Sums, costs: CommunicationCosts):
        both = costs.reduce_scatter + costs.all_gather
        self._start_up, self._line = both.a, both.b * sums.bytes
        start = sums.ready + sums.forward
        layers = sums.layers
        # [cut, n - 1]: n buckets in front of the cut; the last column: that many or more.
        rest = np.full((layers + 1, _COLUMNS), math.inf)
        any_number = np.full(layers + 1, -math.inf)
        rest[1:, 0] = start[0] + self._start_up + self._line[1:]
        for cut in range(1, layers + 1):
            least = start[:cut] + self._start_up + self._line[cut]
            any_number[cut] = np.maximum(least, any_number[:cut]).min()
            most = min(_COLUMNS, cut)
            if most > 1:
                work = np.arange(2, most + 1) * self._start_up + self._line[cut]
                own = start[1:cut, None] + work
                rest[cut, 1:most] = np.maximum(own, rest[1:cut, : most - 1]).min(axis=0)
        rest[:, -1] = np.minimum(rest[:, -1], any_number)
        self._rest = rest
        self._rows = rest.tolist()
        self._numbers = self._start_up * np.arange(1, _COLUMNS + 1)

    def of_cuts(self, value: np.ndarray) -> np.ndarray:
        """Returns the bounds for the cuts 0, 1, 2, ..., by the last axis of the values."""
        count = value.shape[-1]
        line = (value + self._line[:count])[..., None] + self._numbers
        least = np.maximum(self._rest[:count], line).min(axis=-1)
        least[..., 0] = value[..., 0]
        return least

    def of_cut(self, cut: int, value: float) -> float:
        """Returns the bound for one cut."""
        if cut == 0:
            return value
        value += float(self._line[cut])
        best = math.inf
        for rest in self._rows[cut]:
            value += self._start_up
            if value >= best:
                break
            best = min(best, max(rest, value))
        return best
