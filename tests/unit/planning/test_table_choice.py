# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import pytest

from tfdear import cost_model
from tfdear.planning.table_choice import NEVER_SUM, TableChoice

_GIGABYTE = 1 << 30


def _choice(ranks=4, alpha=1e-4, beta=8e-9, memory=64 * _GIGABYTE):
    return TableChoice(ranks, cost_model.ring(ranks, alpha, beta), memory)


@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
@pytest.mark.parametrize(("rows", "columns"), [(50, 4), (1000, 64), (200_000, 512)])
def test_tables_are_divided_where_starts_are_short(ranks, rows, columns):
    assert _choice(ranks).divides(rows, columns)


@pytest.mark.parametrize("ranks", [2, 4])
def test_where_starts_are_long_small_tables_stay_whole(ranks):
    far = _choice(ranks, alpha=60e-3)
    assert not far.divides(1000, 64)
    assert far.divides(2_000_000, 512)  # Its bytes take longer than starts.


def test_a_busy_machine_divides():
    assert _choice(alpha=10e-3).divides(1000, 64)


def test_what_does_not_fit_into_memory_is_divided():
    assert not _choice(alpha=60e-3, memory=2 * 3 * 4 * 1000 * 64).divides(1000, 64)
    assert _choice(alpha=60e-3, memory=2 * 3 * 4 * 1000 * 64 - 2).divides(1000, 64)


@pytest.mark.parametrize("ranks", [3, 4, 8])
@pytest.mark.parametrize("alpha", [1e-6, 1e-3])
def test_rows_are_summed_from_where_that_takes_less(ranks, alpha):
    choice = _choice(ranks, alpha=alpha)
    rows, columns = 100_000, 64
    most = choice.most_gathered(rows, columns)
    gather = choice.collectives.all_gather
    per_row = gather.b * (4 * columns + 8)
    # Two times the table: once to those that sum, and back.
    whole = 4 * rows * columns
    exchange = choice.costs.all_to_all.b * whole * (ranks - 1) / ranks + gather.b * whole
    bits = gather.b * rows / 8 * ranks
    assert most == pytest.approx((1.1 * (exchange + bits) + gather.a) / per_row, abs=1)
    assert rows < most < ranks * rows


def test_two_ranks_always_gather():
    # Either way each sends the other what it has.
    assert _choice(ranks=2).most_gathered(100_000, 64) == NEVER_SUM


def test_as_long_as_rows_are_few_they_are_gathered_where_starts_are_long():
    assert _choice(alpha=1.0).most_gathered(1000, 64) == NEVER_SUM


def test_costs_of_all_exchanges():
    costs = _choice().compare(100_000, 512, 1000.4)
    assert set(costs) == {"all_to_all", "all_gather", "all_reduce"}
    assert costs["all_to_all"] < costs["all_gather"] < costs["all_reduce"]


def test_the_exchange_of_a_step():
    assert _choice(4).exchange(100_000, 64, 100) == "all_to_all"
    far = _choice(4, alpha=60e-3, beta=1e-6)
    assert not far.divides(1000, 64)
    most = far.most_gathered(1000, 64)
    assert most < 4 * 1000
    assert far.exchange(1000, 64, most // 4) == "all_gather"
    assert far.exchange(1000, 64, most // 4 + 1) == "all_reduce"
