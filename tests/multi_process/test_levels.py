# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Gradients summed in two levels: the result, the order of events, bytes, failures."""

import collections
import pathlib
import pickle

import numpy as np
import pytest
import ranks as ranks_module

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

LONG = pytest.mark.long
_JOBS = pathlib.Path(__file__).parent / "jobs"
INTRA = ("intra_reduce_scatter", "intra_all_gather")
INTER = ("inter_reduce_scatter", "inter_all_gather")
CHAIN = (INTRA[0], *INTER, INTRA[1])
Event = collections.namedtuple("Event", "kind ticket subject detail begin end")


def on_nodes(nodes, **variables):
    """The environment of ranks that take themselves for ranks of these nodes."""
    return lambda rank: {"TFDEAR_NODE_RANK": str(nodes[rank]), **variables}


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    done = {}

    def train_once(nodes, collective, schedule="dear"):
        key = (nodes, collective, schedule)
        if key not in done:
            directory = tmp_path_factory.mktemp("job")
            environment = on_nodes(nodes, TFDEAR_COLLECTIVE=collective, TFDEAR_SCHEDULE=schedule)
            results = ranks_module.run_ranks(
                len(nodes), _JOBS / "level_job.py", environment, 200, (str(directory),)
            )
            assert all(code == 0 for code, _ in results), results
            done[key] = [
                pickle.loads((directory / f"rank_{rank}.pickle").read_bytes())
                for rank in range(len(nodes))
            ]
        return done[key]

    return train_once


def check_weights(reports, reference):
    """Ranks agree in every bit, and with the reference within rounding."""
    joined = [np.concatenate([w.ravel() for w in report["weights"]]) for report in reports]
    expected = np.concatenate([w.ravel() for w in reference[0]["weights"]])
    for weights in joined:
        np.testing.assert_array_equal(weights, joined[0])
    np.testing.assert_allclose(joined[0], expected, rtol=1e-6, atol=1e-6)


def steps_of(report):
    events = [Event(*fields) for fields in report["events"]]
    return [event for event in events if event.kind in INTRA + INTER]


@pytest.mark.parametrize(
    ("nodes", "collective", "schedule"),
    [
        ((0, 0, 1, 1), "hierarchical", "dear"),
        pytest.param((0, 0, 1, 1), "hierarchical", "wfbp", marks=LONG),
        pytest.param((0, 0, 1, 1), "hierarchical", "bytescheduler", marks=LONG),
        pytest.param((0, 1, 1, 0), "hierarchical", "dear", marks=LONG),
        ((0, 0, 1, 1), "torus2d", "dear"),
        pytest.param((0, 0, 0, 0), "torus2d", "dear", marks=LONG),
        pytest.param((0, 1), "hierarchical", "dear", marks=LONG),
        pytest.param((0, 0, 0), "hierarchical", "dear", marks=LONG),
        pytest.param((0, 1, 2), "torus2d", "dear", marks=LONG),
    ],
)
def test_weights_are_those_of_a_ring(train, nodes, collective, schedule):
    reports = train(nodes, collective, schedule)
    check_weights(reports, train((0,) * len(nodes), "ring"))
    levels = {
        ((0, 0, 0, 0), "torus2d"): (2, 2),
        ((0, 1), "hierarchical"): (1, 2),
        ((0, 0, 0), "hierarchical"): (3, 1),
        ((0, 1, 2), "torus2d"): (3, 1),
    }.get((nodes, collective), (2, 2))
    kinds = {
        phase
        for phases, size in zip((INTRA, INTER), levels, strict=True)
        for phase in phases
        if size > 1
    }
    for report in reports:
        assert report["levels"] == levels
        assert {event.kind for event in steps_of(report)} == kinds
        costs = report["costs"]
        assert costs.all_reduce.b == pytest.approx(costs.reduce_scatter.b + costs.all_gather.b)
        statistics = report["statistics"]
        assert set(statistics["algbw"]) == kinds
        assert 0 < statistics["exposed"] <= statistics["communication"] * (1 + 1e-9)
        assert statistics["average"]["communication"] > 0
        assert statistics["fraction_of_bound"] > 0


def test_phases_of_a_bucket_follow_one_another(train):
    for report in train((0, 0, 1, 1), "hierarchical"):
        chains = collections.defaultdict(list)
        for event in steps_of(report):
            chains[event.ticket, event.subject].append(event)
        # The record begins and ends between two steps.
        assert len(chains) % report["steps"] == 0 and len(chains) > 2 * report["steps"]
        for chain in chains.values():
            # An all-gather may be cut, never across levels.
            order = sorted(chain, key=lambda event: event.begin)
            places = [CHAIN.index(event.kind) for event in order]
            assert places == sorted(places) and set(places) == {0, 1, 2, 3}
            for before, after in zip(order, order[1:], strict=False):
                assert before.end <= after.begin


def test_nodes_work_while_others_are_waited_for(train):
    at_once = 0
    for report in train((0, 0, 1, 1), "hierarchical"):
        steps = steps_of(report)
        inner = [event for event in steps if event.kind in INTRA]
        for event in steps:
            if event.kind not in INTER:
                continue
            for other in inner:
                if other.begin < event.end and event.begin < other.end:
                    assert (other.ticket, other.subject) != (event.ticket, event.subject)
                    at_once += 1
    assert at_once > 0


def test_gathers_within_nodes_belong_to_the_next_forward_pass(train):
    for report in train((0, 0, 1, 1), "hierarchical"):
        events = [Event(*fields) for fields in report["events"]]
        gradients = collections.defaultdict(list)
        for event in events:
            if event.kind == "contribute":
                gradients[event.ticket].append(event.end)
        last = collections.defaultdict(float)
        for event in events:
            if event.kind == "intra_all_gather":
                last[event.ticket] = max(last[event.ticket], event.end)
        after = [last[ticket] > max(times) for ticket, times in gradients.items() if ticket in last]
        assert sum(after) > len(after) // 2


@pytest.mark.parametrize("collective", ["hierarchical", "torus2d"])
def test_a_node_sends_what_one_rank_would_have_to(train, collective):
    reports = train((0, 0, 1, 1), collective)
    for node in ((0, 1), (2, 3)):
        payload = reports[node[0]]["statistics"]["bytes"]
        sent = sum(reports[rank]["bytes_sent"]["GRADIENTS_INTER"] for rank in node)
        # Both halves, and of each what belongs to the other one of two nodes.
        assert sent == pytest.approx(2 * payload / 2, rel=0.01)
        for rank in node:
            within = reports[rank]["bytes_sent"]["GRADIENTS_INTRA"]
            assert within == pytest.approx(2 * payload / 2, rel=0.01)
            assert reports[rank]["bytes_sent"]["GRADIENTS"] == 0


def test_nodes_with_different_numbers_of_ranks_are_refused():
    script = "import tfdear\ntfdear.DearStrategy()\n"
    environment = on_nodes((0, 0, 1), TFDEAR_COLLECTIVE="hierarchical")
    for code, output in ranks_module.run_ranks(3, script, environment, 90):
        assert code != 0
        assert "same number of ranks on every node" in output, output
        assert "node 0 has 2, node 1 has 1" in output, output


def test_single_collectives_of_every_group():
    script = """
import numpy as np
import tensorflow as tf
import tfdear

strategy = tfdear.DearStrategy()
places = {
    "world": (range(4), strategy.rank),
    "intra_node": ([2 * strategy.node_rank, 2 * strategy.node_rank + 1], strategy.local_rank),
    "inter_node": ([strategy.local_rank, 2 + strategy.local_rank], strategy.node_rank),
}
for group, (members, place) in places.items():
    size = len(members)
    # Member m has the rows 10 m, 10 m + 1, ...: as many as its rank, and sends m + 1 to each.
    own = tf.range(strategy.rank, dtype=tf.int32) + 10 * strategy.rank
    gathered = strategy.all_gather(own, group).numpy()
    np.testing.assert_array_equal(gathered, [10 * m + i for m in members for i in range(m)])
    to_each = strategy.rank + 1
    sent = tf.repeat(100 * strategy.rank + tf.range(size), to_each)
    received, splits = strategy.all_to_all(sent, [to_each] * size, group)
    np.testing.assert_array_equal(splits, [m + 1 for m in members])
    expected = [100 * m + place for m in members for _ in range(m + 1)]
    np.testing.assert_array_equal(received, expected)
    for wrong in ([1] * (size + 1), [-1] + [1] * (size - 1), [1] * (size - 1) + [2]):
        try:
            strategy.all_to_all(tf.zeros([size], tf.int32), wrong, group)
        except tf.errors.InvalidArgumentError as error:
            assert f"per rank ({size})" in str(error), error
        else:
            raise AssertionError(wrong)
    root = strategy.broadcast(tf.constant(float(strategy.rank)), size - 1, group).numpy()
    assert root == members[-1], root
    try:
        strategy.broadcast(tf.constant("text"), 0, group)
    except tf.errors.InvalidArgumentError as error:
        assert "no fixed size" in str(error), error
    rows = tf.ones([2 * size + 1, 3], tf.float64) * (strategy.rank + 1)
    shard = strategy.reduce_scatter(rows, group).numpy()
    assert (shard == sum(m + 1 for m in members)).all() and shard.shape[0] in (2, 3), shard
    strategy.barrier(group)
print("all right")
"""
    for code, output in ranks_module.run_ranks(4, script, on_nodes((0, 0, 1, 1)), 90):
        assert code == 0 and "all right" in output, output


def test_a_torus_that_is_not_made_of_nodes_cannot_compress():
    script = """
import tfdear
tfdear.DearStrategy(collective="torus2d", compression=tfdear.compression.MSTopK())
"""
    for code, output in ranks_module.run_ranks(4, script, on_nodes((0, 0, 0, 0)), 90):
        assert code != 0
        assert "rows that are not nodes" in output and "hierarchical=False" in output, output


def test_ranks_with_different_collectives_are_refused():
    def environment(rank):
        return {
            **on_nodes((0, 0, 1, 1))(rank),
            "TFDEAR_COLLECTIVE": ("ring", "hierarchical")[rank // 2],
        }

    script = "import tfdear\ntfdear.DearStrategy()\n"
    for code, output in ranks_module.run_ranks(4, script, environment, 90):
        assert code != 0
        assert "collective: 'ring' on ranks 0, 1; 'hierarchical' on ranks 2, 3." in output, output


@pytest.mark.timeout(150)
@pytest.mark.parametrize("victim", [3, pytest.param(0, marks=LONG)])
def test_survivors_on_both_nodes_end_with_the_victims_name(victim):
    environment = on_nodes((0, 0, 1, 1), TFDEAR_COLLECTIVE="hierarchical", TFDEAR_HEARTBEAT="5")
    job = ranks_module.Ranks(4, _JOBS / "failing_training.py", environment, ("kill", str(victim)))
    with job:
        job.wait_for_output(victim, "fails now", 90)
        survivors = [rank for rank in range(4) if rank != victim]
        for rank, code in zip(survivors, job.wait(survivors, timeout=30), strict=True):
            output = job.output(rank)
            assert code != 0, output
            assert f"rank {victim}" in output and "killed or crashed" in output, output
