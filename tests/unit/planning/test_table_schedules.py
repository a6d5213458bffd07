# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Iterations with a table, worked out by hand."""

import dataclasses

import pytest

from tfdear.planning import table_schedules
from tfdear.planning.cost_model import CommunicationCosts, LinearCost
from tfdear.planning.embedding_costs import ExchangeCosts
from tfdear.planning.table import Table
from tfdear.planning.table_methods import METHODS
from tfdear.planning.trace import Layer, Trace

# Each layer takes one second forward and two backward; of the dense one each half takes a second.
# An exchange of all eight rows takes 3 s, of four 2 s; that of the ids takes 1 s.
TRACE = Trace(
    "small",
    (Layer("words", 512, 1.0, 2.0), Layer("dense", 64, 1.0, 2.0)),
    (Table("words", 64, 2, ids=8, coalesced=8, prior=4, workers=2),),
)
_HALF = LinearCost(0.0, 1 / 64)
CLUSTER = table_schedules.Cluster(
    workers=2,
    costs=ExchangeCosts(CommunicationCosts(_HALF, _HALF, _HALF + _HALF), LinearCost(1.0, 1 / 16)),
    slices=LinearCost(0.5, 1 / 64),
    kind="column",
)
BUCKETS = [[1], [0]]


def _play(method, schedule, cluster=CLUSTER, buckets=BUCKETS, chunk_bytes=None, **changes):
    table = dataclasses.replace(TRACE.tables[0], **changes)
    trace = dataclasses.replace(TRACE, tables=(table,))
    timeline = table_schedules.timeline(method, schedule, buckets, trace, cluster, chunk_bytes)
    carried = [
        (transfer.phase, transfer.begin, transfer.end)
        for transfer in timeline.transfers
        if transfer.end > transfer.begin
    ]
    return carried, timeline.iteration_time


@pytest.mark.parametrize("chunk_bytes", [None, 64])
def test_shards_without_an_order(chunk_bytes):
    carried, seconds = _play("all_to_all", "wfbp", chunk_bytes=chunk_bytes)
    assert carried == [
        ("all_reduce", 2, 4),
        ("gradient_rows", 4, 7),
        ("ids", 7, 8),
        ("vectors", 8, 11),
    ]
    assert seconds == 13


@pytest.mark.parametrize("chunk_bytes", [None, 64])
def test_horizontal(chunk_bytes):
    carried, seconds = _play("+horizontal", "dear", chunk_bytes=chunk_bytes)
    assert carried == [
        ("ids", 0, 1),
        ("reduce_scatter", 2, 3),
        ("all_gather", 3, 4),
        ("gradient_rows", 4, 7),
        ("vectors", 7, 10),
    ]
    assert seconds == 12


@pytest.mark.parametrize("chunk_bytes", [None, 64])
def test_vertical(chunk_bytes):
    carried, seconds = _play("+vertical", "dear", chunk_bytes=chunk_bytes)
    assert carried == [
        ("ids", 0, 1),
        ("reduce_scatter", 2, 3),
        ("all_gather", 3, 4),
        ("prior_rows", 4, 6),
        ("vectors", 6, 9),
        ("delayed_rows", 9, 11),
    ]
    assert seconds == 11


@pytest.mark.parametrize("chunk_bytes", [None, 64])
def test_early(chunk_bytes):
    carried, seconds = _play("+early", "dear", chunk_bytes=chunk_bytes)
    assert carried == [
        ("ids", 0, 1),
        ("early_vectors", 1, 3),
        ("reduce_scatter", 3, 4),
        ("prior_rows", 4, 6),
        ("vectors", 6, 8),
        ("all_gather", 8, 9),
        ("delayed_rows", 9, 11),
    ]
    # What comes last is part of the iteration, though no layer waits for it.
    assert seconds == 11


def _with(all_to_all, dense=_HALF, **changes):
    collectives = CommunicationCosts(dense, dense, dense + dense)
    return dataclasses.replace(CLUSTER, costs=ExchangeCosts(collectives, all_to_all), **changes)


@pytest.mark.parametrize(("start_up", "same"), [(1.0, "+horizontal"), (0.5, "+early")])
def test_auto_splits_what_is_worth_a_start_up(start_up, same):
    # Four rows take a second, and what travels apart as long to start, or half as long.
    slow = LinearCost(0.0, 1.0)  # Of all but an all-to-all.
    cluster = _with(LinearCost(start_up, 1 / 16), slow, ids_known=True)
    assert _play("auto", "dear", cluster) == _play(same, "dear", cluster)


def test_auto_takes_the_exchange_that_is_fastest():
    slow = LinearCost(100.0, 1 / 16)
    carried, seconds = _play("auto", "dear", _with(slow))
    assert "sparse_gather" in [phase for phase, _, _ in carried]
    assert seconds == 10
    # The whole table takes 16 s in both halves, and starts with the dense gradient.
    late_start = LinearCost(100.0, 1 / 64)
    cluster = _with(slow, late_start)
    carried, seconds = _play("auto", "dear", cluster, buckets=[[1, 0]])
    assert [phase for phase, _, _ in carried] == ["reduce_scatter", "all_gather"]
    assert seconds == _play("dense", "dear", cluster, buckets=[[1, 0]])[1] == 4 + 2 * 109 + 2


def test_ids_that_are_known_do_not_travel():
    cluster = dataclasses.replace(CLUSTER, ids_known=True)
    assert _play("+early", "dear", cluster)[0][0] == ("early_vectors", 0, 2)
    carried, seconds = _play("all_to_all", "wfbp", cluster)
    assert [phase for phase, _, _ in carried] == ["all_reduce", "gradient_rows", "vectors"]
    assert seconds == 12
    assert ("ids", 7, 9) in _play("parameter_servers", "wfbp", cluster)[0]


# Of two bags the sums take 1.5 s, and half a second what is in them.
_BAGS = {"bags": 2, "tokens": 2}


def test_sums_of_bags_travel_in_place_of_vectors():
    carried, seconds = _play("all_to_all", "wfbp", **_BAGS)
    assert carried[-3:] == [("ids", 7, 8), ("bags", 8, 8.5), ("vectors", 8.5, 10)]
    assert seconds == 12
    known = dataclasses.replace(CLUSTER, ids_known=True)
    assert _play("all_to_all", "wfbp", known, **_BAGS)[0][-1:] == [("vectors", 7, 8.5)]


@pytest.mark.parametrize("method", ["+vertical", "+early"])
def test_bags_are_told_when_the_forward_pass_begins_and_no_vectors_come_early(method):
    carried, seconds = _play(method, "dear", **_BAGS)
    assert carried == [
        ("ids", 0, 1),
        ("reduce_scatter", 2, 3),
        ("all_gather", 3, 4),
        ("bags", 4, 4.5),
        ("prior_rows", 4.5, 6.5),
        ("vectors", 6.5, 8),
        ("delayed_rows", 8, 10),
    ]
    assert seconds == 10


def test_vectors_travel_where_sums_of_bags_take_more_bytes():
    # Sums are 48 bytes fewer for both ranks together; four ids in two bags take 48.
    for method, schedule in (("all_to_all", "wfbp"), ("+vertical", "dear")):
        assert _play(method, schedule, bags=2, tokens=4) == _play(method, schedule)
    assert _play("+early", "dear", bags=2, tokens=4) == _play("+vertical", "dear")
    # By row nobody can add up what others hold, and servers hold rows.
    by_row = dataclasses.replace(CLUSTER, kind="row")
    assert _play("+early", "dear", by_row, **_BAGS) == _play("+early", "dear", by_row)
    for method in ("parameter_servers", "all_gather"):
        assert _play(method, "wfbp", **_BAGS) == _play(method, "wfbp")


def test_auto_knows_that_sums_are_faster():
    # Rows take 6.4 s to gather, ids, vectors and gradients 6.75, with sums in their place 6.05.
    cluster = _with(LinearCost(0.25, 1 / 16), LinearCost(0.0, 1 / 40))
    exchange = [
        table_schedules.exchange_of(dataclasses.replace(TRACE.tables[0], **bags), "auto", cluster)
        for bags in ({}, _BAGS)
    ]
    assert exchange == ["all_gather", "all_to_all"]


def test_vectors_of_half_the_size_take_less():
    cluster = dataclasses.replace(CLUSTER, value_bytes=2)
    assert _play("+horizontal", "dear", cluster)[0][-2:] == [
        ("gradient_rows", 4, 7),
        ("vectors", 7, 9),
    ]


def test_gathers_and_all_reduces():
    carried, seconds = _play("all_gather", "wfbp")
    assert carried == [("all_reduce", 2, 4), ("sparse_gather", 4, 8)]
    assert seconds == 10
    assert _play("all_gather", "sequential")[0] == [("all_reduce", 4, 6), ("sparse_gather", 6, 10)]
    assert _play("dense", "wfbp")[1] == 22
    # The table's and the dense gradient's slice, each with a start-up.
    assert _play("byteps", "bytescheduler")[1] == 4 + 0.5 + 8 + 2


def test_fewer_slices_than_servers_keep_the_busiest_busy():
    # Two of four servers have a slice, so that each carries twice its share.
    cluster = dataclasses.replace(CLUSTER, workers=4)
    carried, seconds = _play("byteps", "bytescheduler", cluster)
    assert carried == [("all_reduce", 2, 5), ("all_reduce", 5, 22)]
    assert seconds == 24


def test_a_row_for_each_id_takes_longer_than_one_for_each_different_id():
    table = dataclasses.replace(TRACE.tables[0], ids=16)
    trace = dataclasses.replace(TRACE, tables=(table,))
    raw = table_schedules.timeline("all_gather_raw", "wfbp", BUCKETS, trace, CLUSTER)
    assert raw.iteration_time == 14
    assert raw.exposed == 14 - 6


@pytest.mark.parametrize(
    ("method", "seconds"), [("parameter_servers_1", 19), ("parameter_servers_2", 14)]
)
def test_servers(method, seconds):
    assert _play(method, "wfbp")[1] == seconds


def test_a_bucket_of_a_table_only_is_not_sent():
    apart, together = (
        _play("all_gather", "wfbp", buckets=buckets)[0] for buckets in ([[1], [0]], [[1, 0]])
    )
    assert [phase for phase, _, _ in apart] == ["all_reduce", "sparse_gather"]
    # In one bucket the dense gradient waits for the backward pass of the table's layer.
    assert ("all_reduce", 4, 6) in together or ("all_reduce", 8, 10) in together


@pytest.mark.parametrize("method", METHODS)
def test_alone_nothing_travels(method):
    nothing = LinearCost(0.0, 0.0)
    costs = ExchangeCosts(CommunicationCosts(nothing, nothing, nothing), LinearCost(0.0, 1.0))
    cluster = dataclasses.replace(CLUSTER, workers=1, costs=costs, slices=nothing)
    schedule = METHODS[method].schedules[0]
    timeline = table_schedules.timeline(method, schedule, BUCKETS, TRACE, cluster)
    assert timeline.exposed == 0


def test_refuses():
    with pytest.raises(ValueError, match="`method`.*'quick'"):
        _play("quick", "wfbp")
    with pytest.raises(ValueError, match="method 'all_to_all' must be one of wfbp.*'dear'"):
        _play("all_to_all", "dear")
