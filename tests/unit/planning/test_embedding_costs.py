# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from tfdear import cost_model
from tfdear.planning.embedding_costs import (
    ExchangeCosts,
    TableTraffic,
    block_sparse,
    choose,
    overhead,
)
from tfdear.planning.partition import Partition
from tfdear.planning.table import Table

_ALPHA, _BETA = 1e-5, 1e-9


def _costs(ranks):
    return ExchangeCosts(
        cost_model.ring(ranks, _ALPHA, _BETA), cost_model.pairwise(ranks, _ALPHA, _BETA)
    )


def _table(rows, columns, used, ids=None):
    return Table("t", rows, columns, ids or used, used, used // 2, 4)


@pytest.mark.parametrize(
    ("approach", "expected"),
    [
        ("all_to_all", 2 * 7 * (0.25 * 800 / (8 * 50) + 3)),
        ("all_reduce", 2 * 7 * (800 / (8 * 50) + 3)),
        ("parameter_servers", 2 * 8 * (0.25 * 800 / (2 * 50) + 3)),
        ("all_gather", 7 * (0.25 * 800 / 50 + 3)),
    ],
)
def test_overhead_is_table_2(approach, expected):
    symbols = {"density": 0.25, "table_bytes": 800, "workers": 8, "bandwidth": 50, "latency": 3}
    assert overhead(approach, **symbols, nodes=2) == pytest.approx(expected)


def test_overhead_refuses():
    with pytest.raises(ValueError, match="'tree'"):
        overhead("tree", density=1, table_bytes=1, workers=2, bandwidth=1, latency=0)


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_our_costs_are_table_2_where_nothing_else_travels(ranks):
    """Without ids and indices, with columns that all ranks have the same number of."""
    table, costs = _table(6400, 1024, 640), _costs(ranks)
    symbols = {
        "density": 0.1,
        "table_bytes": 4 * 6400 * 1024,
        "workers": ranks,
        "bandwidth": 1 / _BETA,
        "latency": _ALPHA,
    }
    found = choose(table, ranks, costs, ids_known=True, kind="column").seconds
    assert found["all_to_all"] == pytest.approx(overhead("all_to_all", **symbols))
    assert found["all_reduce"] == pytest.approx(overhead("all_reduce", **symbols))
    indices = (ranks - 1) * 8 * 640 * _BETA
    assert found["all_gather"] - indices == pytest.approx(overhead("all_gather", **symbols))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("columns", [3, 100, 512])
def test_traffic_by_column_is_that_of_the_partition(ranks, columns):
    used, value_bytes = 40, 2
    holders = Partition("column", 1000, columns, ranks)
    traffic = TableTraffic(_table(1000, columns, used), ranks, holders, value_bytes)
    others = [rank for rank in range(ranks)]
    sent = [holders.vector_bytes(rank, [used] * ranks, value_bytes) for rank in others]
    received = [used * (columns - width) * value_bytes for width in holders.widths]
    assert traffic.vectors(used) == max(*sent, *received, 0)
    sent = [holders.gradient_bytes(rank, [used] * ranks) for rank in others]
    received = [(ranks - 1) * used * width * 4 for width in holders.widths]
    assert traffic.gradients(used) == max(*sent, *received, 0)
    assert traffic.ids() == holders.id_bytes(0, [used] * ranks)
    assert traffic.gathered(used) == used * (4 * columns + 8)


def test_traffic_by_row_is_that_of_the_busiest_holder():
    table = _table(100_000, 8, 400, ids=800)
    one, two, four = (
        TableTraffic(table, 4, Partition("row", 100_000, 8, holders)) for holders in (1, 2, 4)
    )
    assert one.vectors(400) == 3 * 400 * 8 * 4
    assert one.ids() == 3 * 400 * 4
    # Half and a quarter of the rows and, since the first has the most frequent, a few more.
    assert 3 * 200 * 8 * 4 <= two.vectors(400) <= 1.02 * 3 * 200 * 8 * 4
    assert 3 * 100 * 8 * 4 <= four.gradients(400) <= 1.02 * 3 * 100 * 8 * 4


def test_choice_by_time():
    # What is used as a whole travels as a whole; of two ranks a gather asks no vectors.
    assert choose(_table(20_000, 16, 19_500), 16, _costs(16)).exchange == "all_reduce"
    assert choose(_table(100_000, 512, 1000), 2, _costs(2)).exchange == "all_gather"
    choice = choose(_table(793_471, 512, 1766), 16, _costs(16))
    assert choice.exchange == "all_to_all"
    assert choice.partition == Partition("column", 793_471, 512, 16)
    assert min(choice.seconds, key=choice.seconds.get) == "all_to_all"
    assert choose(_table(20_000, 16, 19_500), 16, _costs(16)).partition is None


def test_choice_changes_with_measured_rows():
    from_sizes = _table(32_000, 512, 32_000)
    measured = dataclasses.replace(from_sizes, coalesced=500, prior=100)
    assert choose(from_sizes, 8, _costs(8)).exchange == "all_reduce"
    assert choose(measured, 8, _costs(8)).exchange == "all_to_all"


def test_choice_by_memory():
    table, costs = _table(1_000_000, 512, 1000), _costs(2)
    whole = 4 * 512 * 1_000_000
    free = choose(table, 2, costs, slots=2)
    assert free.exchange == "all_gather"
    assert free.memory["all_reduce"] == 4 * whole
    assert free.memory["all_gather"] == 3 * whole + 2 * 1000 * (4 * 512 + 8)
    assert whole * 1.5 < free.memory["all_to_all"] < whole * 1.51
    assert choose(table, 2, costs, slots=2, memory_bytes=2 * whole).exchange == "all_to_all"
    # Where nothing fits, the smallest is the best that there is.
    assert choose(table, 2, costs, slots=2, memory_bytes=whole).exchange == "all_to_all"


def test_more_bandwidth_or_latency_changes_the_choice():
    table = _table(50_000, 64, 2000)
    fast = ExchangeCosts(cost_model.ring(4, 0, _BETA), cost_model.pairwise(4, 0, _BETA))
    slow = ExchangeCosts(cost_model.ring(4, 1.0, _BETA), cost_model.pairwise(4, 1.0, _BETA))
    assert choose(table, 4, fast).exchange == "all_to_all"
    assert choose(table, 4, slow).exchange == "all_gather"


def test_block_sparse_is_between_sparse_and_dense():
    costs = _costs(4)
    times = [block_sparse(_table(10_000, 512, used), 4, costs) for used in (100, 1000, 10_000)]
    assert times == sorted(times)
    dense = costs.dense(4 * 512 * 10_000)
    assert times[0] < 0.2 * dense and times[-1] > dense
    assert block_sparse(_table(10_000, 512, 100), 1, _costs(1)) == 0
