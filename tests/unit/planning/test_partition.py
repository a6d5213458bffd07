# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import pytest

from tfdear.planning.partition import Partition, choose

_RANKS = (1, 2, 3, 4, 7, 16, 64)
_COLUMNS = (1, 2, 3, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100, 255, 512, 1000, 1024)


@pytest.mark.parametrize("ranks", _RANKS)
@pytest.mark.parametrize("columns", _COLUMNS)
def test_columns_are_covered_once_and_evenly(columns, ranks):
    partition = Partition("column", 10, columns, ranks)
    covered = [column for rank in range(ranks) for column in partition.columns_of(rank)]
    assert covered == list(range(columns))
    widths = partition.widths
    assert [partition.shape_of(rank) for rank in range(ranks)] == [(10, w) for w in widths]
    if columns >= 16 * ranks:
        assert sum(width % 16 != 0 for width in widths) <= 1
        assert max(widths) - min(widths) <= 16
    else:
        assert max(widths) - min(widths) <= 1
    assert sum(width == 0 for width in widths) == max(0, ranks - columns)


@pytest.mark.parametrize(
    ("columns", "ranks", "widths"),
    [
        (512, 3, [176, 176, 160]),
        (100, 4, [32, 32, 16, 20]),
        (100, 3, [32, 32, 36]),
        (16, 2, [8, 8]),
        (31, 2, [16, 15]),
        (3, 4, [1, 1, 1, 0]),
    ],
)
def test_widths(columns, ranks, widths):
    assert Partition("column", 5, columns, ranks).widths == widths


@pytest.mark.parametrize("ranks", _RANKS)
@pytest.mark.parametrize("rows", [1, 2, 5, 63, 64, 1000])
def test_rows_are_those_of_the_id_modulo_the_ranks(rows, ranks):
    partition = Partition("row", rows, 8, ranks)
    for rank in range(ranks):
        own = [row for row in range(rows) if row % ranks == rank]
        assert partition.shape_of(rank) == (len(own), 8)
    assert partition.widths == [8] * ranks


def test_bytes_by_column_are_those_of_the_contract():
    partition = Partition("column", 1000, 100, 4)
    unique = [10, 20, 30, 41]
    for rank, width in enumerate(partition.widths):
        peers = sum(unique) - unique[rank]
        assert partition.vector_bytes(rank, unique, 2) == peers * width * 2
        owed = [unique[rank]] * 4
        assert partition.gradient_bytes(rank, owed) == 4 * unique[rank] * (100 - width)
        assert partition.id_bytes(rank, owed) == 4 * 3 * unique[rank]


def test_bytes_by_row_count_what_each_rank_owns():
    partition = Partition("row", 1000, 8, 3)
    assert partition.vector_bytes(1, [5, 7, 2], 4) == (5 + 2) * 8 * 4
    assert partition.gradient_bytes(1, [5, 7, 2]) == (5 + 2) * 8 * 4
    assert partition.id_bytes(1, [5, 7, 2]) == (5 + 2) * 4


@pytest.mark.parametrize(
    ("columns", "ranks", "value_bytes", "kind"),
    [
        (512, 32, 4, "column"),
        (512, 33, 4, "row"),
        (512, 32, 2, "row"),
        (512, 16, 2, "column"),
        (3, 4, 4, "row"),
        (3, 1, 4, "column"),
    ],
)
def test_auto_divides_by_row_where_columns_are_thinner_than_a_cache_line(
    columns, ranks, value_bytes, kind
):
    assert choose("auto", 100, columns, ranks, value_bytes).kind == kind


@pytest.mark.parametrize("kind", ["column", "row"])
def test_a_kind_that_is_given_is_taken(kind):
    assert choose(kind, 100, 3, 8) == Partition(kind, 100, 3, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("table", 1, 1, 1), "`kind`.*'table'"),
        (("row", 0, 1, 1), "`rows`.*0"),
        (("row", 1, True, 1), "`columns`.*True"),
        (("row", 1, 1, 1.5), "`ranks`.*1.5"),
        (("row", 2**31, 1, 1), "2,147,483,647 rows.*2,147,483,648"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        Partition(*arguments)


def test_refuses_ranks_and_counts_that_there_are_not():
    partition = Partition("column", 10, 10, 2)
    for call in (partition.columns_of, partition.rows_of, partition.shape_of):
        with pytest.raises(ValueError, match="rank=2"):
            call(2)
    with pytest.raises(ValueError, match="`owed`.*2 ranks.*1 numbers"):
        partition.gradient_bytes(0, [1])
    with pytest.raises(ValueError, match="`value_bytes`.*0"):
        choose("auto", 1, 1, 1, 0)
