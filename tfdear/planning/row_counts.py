# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How the counts of a table's rows change with the number of ranks. Imports no TensorFlow.

A trace has the counts of one batch. For other numbers of ranks it takes a model of the words: the
r-th most frequent id has a probability in proportion to 1 / r^s (Zipf's law), with the exponent for
which a batch of that many ids has that many different ones.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from tfdear.planning.table import Table

# Ids are summed one by one up to this place, and from there in groups of this width relative to
# their place: a table may have more rows than there is memory for.
_ONE_BY_ONE = 4096
_GROUP = 0.002
_STEEPEST = 8.0
_HALVINGS = 50


@dataclasses.dataclass(frozen=True)
class RowCounts:
    """Counts of a table's rows for any number of ranks.

    Args:
        table: The table.
        exponent: That of Zipf's law.
        locality: How many times as many batches the next ones seem to be: above 1, successive
            batches share more ids than independent ones, below 1 fewer.
    """

    table: Table
    exponent: float
    locality: float

    def prior(self, workers: int) -> int:
        """Returns how many of a batch's ids occur in the next batch of any of so many ranks.

        It is also how many ids of the next batch occur in this one of any rank.
        """
        return round(self.table.coalesced * self._seen_again(workers))

    def touched(self, workers: int) -> int:
        """Returns how many different ids the batches of so many ranks have together."""
        one = self._sum(self._in_batch)
        all_ranks = self._sum(lambda share: _occurs(share, self.table.ids * workers))
        growth = all_ranks / one if one else 0.0
        most = min(self.table.rows, self.table.coalesced * workers)
        return min(most, round(self.table.coalesced * growth))

    def busiest_share(self, holders: int) -> float:
        """Returns the part of a batch's different ids that the busiest of the holders has.

        Ids belong to holders by their number modulo the holders, and are numbered by frequency:
        the holder of the most frequent one is the busiest.
        """
        total = self._sum(self._in_batch)
        return self._sum(self._in_batch, holders) / total if total else 1.0 / holders

    def _seen_again(self, workers: int) -> float:
        next_ids = self.table.ids * workers * self.locality
        total = self._sum(self._in_batch)
        both = self._sum(lambda share: self._in_batch(share) * _occurs(share, next_ids))
        return both / total if total else 0.0

    def _in_batch(self, share: np.ndarray) -> np.ndarray:
        return _occurs(share, self.table.ids)

    def _sum(self, function: Callable[[np.ndarray], np.ndarray], step: int = 1) -> float:
        """The sum of a function of the probability, over every `step`-th id from the first."""
        places, weights = _places(len(range(0, self.table.rows, step)))
        probability = (step * places + 1.0) ** -self.exponent / self._normalization
        return float(weights @ function(probability))

    @functools.cached_property
    def _normalization(self) -> float:
        places, weights = _places(self.table.rows)
        return float(weights @ (places + 1.0) ** -self.exponent)


@functools.lru_cache(maxsize=64)
def fit(table: Table) -> RowCounts:
    """Returns the model with the table's counts."""

    def coalesced(exponent: float) -> float:
        counts = RowCounts(table, exponent, 1.0)
        return counts._sum(counts._in_batch)

    # A steeper law repeats more.
    exponent = _falls_to(coalesced, table.coalesced, 0.0, _STEEPEST)

    def not_prior(logarithm: float) -> float:
        return 1.0 - RowCounts(table, exponent, 10.0**logarithm)._seen_again(table.workers)

    part = table.prior / table.coalesced if table.coalesced else 0.0
    locality = 10.0 ** _falls_to(not_prior, 1.0 - part, -6.0, 6.0)
    return RowCounts(table, exponent, locality)


def _falls_to(function: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Where a falling function has the value; an end of the interval, if nowhere in it."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if function(middle) > value:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _occurs(probability: np.ndarray, draws: float) -> np.ndarray:
    """The probability that an id is among so many that are drawn."""
    with np.errstate(divide="ignore"):  # The only id of a table has probability one.
        return (
            -np.expm1(draws * np.log1p(-np.minimum(probability, 1.0))) if draws else 0 * probability
        )


@functools.lru_cache(maxsize=256)
def _places(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Places from 0 to `count`, and how many each of them stands for."""
    first = np.arange(min(count, _ONE_BY_ONE), dtype=float)
    if count <= _ONE_BY_ONE:
        return first, np.ones_like(first)
    groups = int(np.ceil(np.log(count / _ONE_BY_ONE) / _GROUP))
    edges = np.unique(np.round(np.geomspace(_ONE_BY_ONE, count, groups + 1)))
    middles = (edges[1:] + edges[:-1] - 1) / 2
    return np.append(first, middles), np.append(np.ones_like(first), np.diff(edges))
