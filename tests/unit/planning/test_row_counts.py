# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import dataclasses

import numpy as np
import pytest

from tfdear import simulator
from tfdear.planning import row_counts
from tfdear.planning.table import Table

TABLE = Table("words", 5000, 8, ids=600, coalesced=300, prior=150, workers=4)


def _drawn(table, exponent, ranks, seed=0):
    """Batches of ids by Zipf's law: of each rank its different ones."""
    share = np.arange(1, table.rows + 1) ** -exponent
    share /= share.sum()
    random = np.random.default_rng(seed)
    return [np.unique(random.choice(table.rows, table.ids, p=share)) for _ in range(ranks)]


def test_the_model_has_the_counts_of_the_table():
    counts = row_counts.fit(TABLE)
    assert counts.prior(4) == 150
    assert counts.touched(1) == 300


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_counts_are_those_of_batches_that_are_drawn(ranks):
    exponent = row_counts.fit(TABLE).exponent
    counts = row_counts.RowCounts(TABLE, exponent, locality=1.0)
    found = []
    for seed in range(20):
        batches = _drawn(TABLE, exponent, 2 * ranks, seed)
        following = np.unique(np.concatenate(batches[ranks:]))
        mine = batches[0]
        found.append((len(mine), len(np.intersect1d(mine, following)), len(following)))
    different, again, together = np.mean(found, axis=0)
    assert different == pytest.approx(300, rel=0.03)
    assert counts.prior(ranks) == pytest.approx(again, rel=0.05)
    assert counts.touched(ranks) == pytest.approx(together, rel=0.05)


@pytest.mark.parametrize("holders", [2, 3, 16, 300])
def test_the_busiest_holder_is_that_of_batches_that_are_drawn(holders):
    counts = row_counts.fit(TABLE)
    shares = []
    for ids in _drawn(TABLE, counts.exponent, 200):
        shares.append(np.bincount(ids % holders, minlength=holders) / len(ids))
    assert counts.busiest_share(holders) == pytest.approx(np.mean(shares, axis=0)[0], rel=0.06)
    assert counts.busiest_share(holders) >= 1 / holders


def test_more_ranks_ask_for_more_of_the_rows():
    counts = row_counts.fit(TABLE)
    prior = [counts.prior(2**exponent) for exponent in range(12)]
    assert prior == sorted(prior)
    assert prior[0] < 150 < prior[-1] <= 300


@pytest.mark.parametrize(
    "numbers",
    [(1, 0, 0, 0), (1, 5, 1, 1), (3, 5, 3, 0), (1 << 53, 50, 50, 50), (1 << 53, 50, 1, 0)],
)
def test_tables_at_the_limits(numbers):
    rows, ids, coalesced, prior = numbers
    counts = row_counts.fit(Table("t", rows, 1, ids, coalesced, prior, 2))
    for ranks in (1, 2, 1000):
        assert 0 <= counts.prior(ranks) <= coalesced
        assert coalesced <= counts.touched(ranks) <= min(rows, ranks * coalesced)
        assert 1 / ranks * (1 - 1e-9) <= counts.busiest_share(ranks) <= 1 + 1e-9


@pytest.mark.parametrize("name", ["gnmt-8", "transformer-big", "bert-base-squad"])
def test_two_columns_of_the_paper_give_the_third(name):
    """EmbRace, Table 3: prior rows follow from raw and coalesced ones, with four workers."""
    table = simulator.load(name).tables[0]
    fitted = row_counts.fit(dataclasses.replace(table, prior=0))
    independent = row_counts.RowCounts(table, fitted.exponent, locality=1.0)
    assert independent.prior(4) == pytest.approx(table.prior, rel=0.06)
