# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which of several signs counts as the reason of a failure, and how it is told."""

import dataclasses

import pytest

from tfdear.monitor import diagnosis

ITEM = {
    "group": "world",
    "sequence": 17,
    "signature": "all_reduce float32[10]",
    "seconds": 5.0,
    "waiting_for": 1,
}
BASE = diagnosis.Snapshot(
    rank=0,
    describe=lambda rank: f"rank {rank} (host h{rank}, pid {100 + rank})",
    members=lambda group: [0, 1, 2],
    in_flight=[ITEM],
)
CLOSED = {"message": "connection to rank 1 was closed", "peer": 1, "kind": "unavailable"}
LEFT = {"aborted": False, "failed": False}


def cause(**signs):
    return diagnosis.find_cause(dataclasses.replace(BASE, **signs))


def stall(**changes):
    return [{**ITEM, **changes}]


def test_no_sign_no_cause():
    assert cause() is None
    assert cause(stalls={1: stall(), 2: stall()}) is None


def test_exception_wins_over_its_consequences():
    found = cause(
        failed={1: {"error": "ValueError: no data", "time": 5.0}},
        failure=CLOSED,
        failure_seconds=9.0,
        lost={1: 0.0},
    )
    assert found.kind == "aborted"
    assert "rank 1 (host h1, pid 101) failed: ValueError: no data." in found.message
    assert "Rank 0 was in all_reduce float32[10] (#17 in group world)." in found.message


def test_first_exception_is_the_cause():
    reports = {1: {"error": "later", "time": 6.0}, 2: {"error": "first", "time": 5.0}}
    assert "rank 2 (host h2, pid 102) failed: first" in cause(failed=reports).message


def test_closed_connection_waits_for_last_words():
    assert cause(failure=CLOSED, failure_seconds=1.0) is None
    found = cause(failure=CLOSED, failure_seconds=1.6)
    assert found.kind == "unavailable"
    assert "rank 0 (host h0, pid 100) has lost a connection to rank 1 (host" in found.message
    assert "signs of life: connection to rank 1 was closed. Rank 0 was in" in found.message
    found = cause(failure=CLOSED, failure_seconds=1.6, lost={1: 0.0})
    assert "rank 1 (host h1, pid 101) was lost: it was killed or crashed" in found.message


def test_closed_connection_of_an_unknown_peer_waits_for_its_stream():
    failure = {"message": "some connection was closed", "peer": -1, "kind": "unavailable"}
    assert cause(failure=failure, failure_seconds=11.0) is None
    assert "rank 2 (host h2" in cause(failure=failure, lost={2: 7.0}).message
    assert "some connection was closed" in cause(failure=failure, failure_seconds=12.5).message


@pytest.mark.parametrize("kind", ["internal", "resource_exhausted"])
def test_error_of_this_rank_needs_no_other_cause(kind):
    failure = {"message": "this rank has no memory left", "peer": -1, "kind": kind}
    found = cause(failure=failure, failure_seconds=0.1)
    assert found.kind == "aborted"
    assert found.message.startswith("rank 0 (host h0, pid 100): this rank has no memory left")


def test_rank_that_left_is_a_cause_only_for_those_who_wait_for_it():
    assert cause(left={1: LEFT}, in_flight=[]) is None
    assert cause(left={1: LEFT}, in_flight=[], failure=CLOSED, failure_seconds=9.0) is None
    assert cause(left={2: LEFT}) is None
    assert cause(left={1: LEFT}, in_flight=stall(seconds=0.5)) is None
    found = cause(left={1: LEFT}, stalls={2: stall()})
    assert "rank 1 (host h1, pid 101) left the job" in found.message
    assert "while ranks 0, 2 wait in all_reduce float32[10] (#17" in found.message


def test_who_calls_fit_on_the_chief_alone_reads_that_it_is_for_all():
    rule = "call them on every rank, not only on the chief. "
    assert rule + "See rank 1's log" in cause(left={1: LEFT}, in_flight=stall()).message
    other = {1: stall(signature="all_gather float32[4]"), 2: stall()}
    assert rule.strip() in cause(in_flight=stall(seconds=2.1), stalls=other).message
    assert rule + "Raise the timeout" in cause(in_flight=stall(seconds=301.0)).message
    everybody = {1: stall(), 2: stall()}
    late = stall(seconds=301.0, waiting_for=-1)
    assert "not only on the chief" not in cause(in_flight=late, stalls=everybody).message


def test_rank_that_left_closes_its_connections():
    found = cause(left={1: LEFT}, failure=CLOSED, in_flight=stall(seconds=0.1, waiting_for=2))
    assert "left the job" in found.message


def test_silent_rank():
    assert cause(lost={2: 7.0}, left={2: LEFT}) is None
    found = cause(lost={2: 7.0}, heartbeat=7.0)
    assert "rank 2 (host h2, pid 102) has not given a sign of life for 7 s" in found.message


def test_killed_rank():
    assert cause(lost={2: 0.0}, failed={2: {"error": "told before"}}).kind == "aborted"
    found = cause(lost={2: 0.0, 1: 7.0})
    assert "rank 2 (host h2, pid 102) was lost: it was killed or crashed" in found.message
    found = cause(lost={2: 0.0, 1: 0.0})
    assert "rank 2 (host h2, pid 102) were lost: they were killed" in found.message


def test_different_collectives_wait_for_every_rank():
    other = {1: stall(signature="all_gather float32[4]")}
    assert cause(in_flight=stall(seconds=2.1), stalls=other) is None
    assert "rank 1: all_gather" in cause(in_flight=stall(seconds=5.1), stalls=other).message


def test_different_collectives():
    other = stall(signature="all_gather float32[4]")
    found = cause(stalls={1: other, 2: stall()})
    assert found.kind == "invalid_argument"
    assert (
        "ranks 0, 2: all_reduce float32[10]; rank 1: all_gather float32[4] (#17 in group world)"
        in found.message
    )


def test_ranks_that_wait_for_each_other_in_different_groups():
    def waits(group, seconds=5.1, **opened):
        return stall(group=group, signature=f"sum in {group}", seconds=seconds, opened=opened)

    here = waits("control", control=8, exchanges=3)
    apart = waits("exchanges", control=7, exchanges=4)
    found = cause(in_flight=here, stalls={1: apart, 2: here})
    assert found.kind == "invalid_argument"
    assert (
        "ranks call different collectives: ranks 0, 2: sum in control (#17 in group control); "
        "rank 1: sum in exchanges (#17 in group exchanges). All ranks must"
    ) in found.message
    assert cause(in_flight=here, stalls={2: waits("control", control=9, exchanges=3)}) is None
    # One of them is behind, and may come.
    assert cause(in_flight=here, stalls={1: waits("exchanges", control=8, exchanges=4)}) is None
    assert cause(in_flight=here, stalls={1: waits("exchanges", control=7, exchanges=3)}) is None
    # Ranks that have just begun to wait may have been seen before they called the rest.
    early = waits("control", 5.0, control=8, exchanges=3)
    assert cause(in_flight=early, stalls={1: apart}) is None
    # Groups of other ranks have orders of their own.
    members = {"control": [0, 1, 2], "exchanges": [0, 1]}.__getitem__
    assert cause(in_flight=here, stalls={1: apart}, members=members) is None
    assert cause(in_flight=here, stalls={1: waits("exchanges", control="x")}) is None


def test_different_order_of_variables_names_the_first():
    def item(name, *identities):
        tensors = [f"{identity} {name}{identity} float32(8,)" for identity in identities]
        return stall(signature=f"reduce {identities}", tensors=tensors)

    # Names alone may differ: Keras counts the layers of a process.
    found = cause(in_flight=item("dense_1/", "a", "b", "c"), stalls={1: item("x/", "a", "c", "b")})
    assert found is None  # Rank 2 was not heard of yet.
    found = cause(
        in_flight=item("mine/", "a", "b", "c"),
        stalls={1: item("theirs/", "a", "c", "b"), 2: item("mine/", "a", "b", "c")},
    )
    assert "Rank 0 sends the gradient of mine/b float32(8,)" in found.message
    assert "where rank 1 sends that of theirs/c float32(8,)" in found.message


def test_different_tickets_are_explained():
    mine, other = (stall(signature=f"reduce x, ticket {number}") for number in (7, 8))
    found = cause(in_flight=mine, stalls={1: other, 2: mine})
    assert "rank 1: reduce x, ticket 8" in found.message
    assert "given up a step" in found.message
    other = stall(signature="gather y, ticket 8")
    assert "given up" not in cause(in_flight=mine, stalls={1: other, 2: mine}).message


@pytest.mark.parametrize("change", [{"sequence": 18}, {"group": "intra_node"}])
def test_collectives_at_other_places_are_not_compared(change):
    assert cause(stalls={1: stall(signature="all_gather float32[4]", **change)}) is None


def test_groups_of_other_nodes_are_not_compared():
    item = {**ITEM, "group": "intra_node"}
    other = {**item, "signature": "all_gather float32[4]"}
    signs = {"in_flight": [item], "stalls": {1: [item], 2: [other]}}
    assert cause(members=lambda group: [0, 1], **signs) is None
    assert cause(members=lambda group: [0, 1, 2], **signs).kind == "invalid_argument"


def test_deadline_names_those_who_did_not_come():
    found = cause(in_flight=stall(seconds=31.0), timeout=30.0, stalls={2: stall()})
    assert found.kind == "deadline_exceeded"
    assert "was not complete after 30 s" in found.message
    assert "Rank 1 did not come: rank 1 is alive but waits in no collective" in found.message


def test_deadline_tells_where_the_others_wait():
    earlier = stall(sequence=16, signature="all_gather float32[4]")
    found = cause(
        in_flight=stall(seconds=31.0), timeout=30.0, stalls={1: earlier, 2: stall(sequence=18)}
    )
    assert "Rank 1 did not come: rank 1 waits in all_gather float32[4] (#16" in found.message


def test_deadline_that_the_engine_noticed():
    failure = {"message": "rank 1 sent nothing for 300 s", "peer": 1, "kind": "deadline_exceeded"}
    found = cause(failure=failure, failure_seconds=9.0, stalls={2: stall()})
    assert found.kind == "deadline_exceeded"
    assert "Rank 1 did not come" in found.message


def test_cause_travels_as_text():
    found = cause(lost={2: 7.0})
    assert diagnosis.Cause.from_json(found.to_json()) == found


def test_ops_that_wait_for_each_other_are_named():
    ops = [f"layer_{number}/vectors" for number in range(7)]
    assert cause(in_flight=[], waiting_ops=ops, waiting_seconds=299.0) is None
    assert cause(in_flight=[], waiting_ops=[], waiting_seconds=301.0) is None
    found = cause(in_flight=[], waiting_ops=ops, waiting_seconds=301.0)
    assert found.kind == "deadline_exceeded"
    assert "rank 0 (host h0, pid 100)" in found.message and "300 s" in found.message
    assert "layer_4/vectors and 2 more." in found.message
