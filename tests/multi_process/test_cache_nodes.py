# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A cache over several nodes: single examples, orders within nodes, left out examples, the end."""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from ranks import run_ranks

pytestmark = [
    pytest.mark.multi_process,
    pytest.mark.timeout(240),
    pytest.mark.newest_only,
]
_JOB = pathlib.Path(__file__).parent / "jobs" / "cache_nodes_job.py"
_EXAMPLES, _BATCH = 1003, 12


@pytest.fixture(
    scope="module",
    params=[((0, 0, 1), "0"), pytest.param(((0, 1), "1"), marks=pytest.mark.long)],
    ids=["001", "01_encrypted"],
)
def reports(request, tmp_path_factory):
    """What the ranks of a job stored, and the folder."""
    nodes, encrypted = request.param
    variables = {"TFDEAR_CONNECTIONS": "2", "TFDEAR_TLS": encrypted}
    directory = tmp_path_factory.mktemp("job")
    results = run_ranks(
        len(nodes),
        _JOB,
        lambda rank: variables | {"TFDEAR_NODE_RANK": str(nodes[rank])},
        timeout=120,
        arguments=(str(directory),),
    )
    for code, output in results:
        assert code == 0, output[-3000:]
    ranks = range(len(nodes))
    return [json.loads((directory / f"rank_{r}.json").read_text()) for r in ranks], directory


def test_single_examples_are_dealt_out(reports):
    ranks, _ = reports
    for report in ranks:
        assert report["examples"] == report["batches"]
    assert sorted(sum((report["examples"] for report in ranks), [])) == list(range(_EXAMPLES))


def test_many_epochs_take_no_more(reports):
    ranks, _ = reports
    for report in ranks:
        memory, threads, descriptors = np.diff(report["taken"], axis=0)[0]
        assert memory < 4 << 20
        # One of each epoch would be fifty.
        assert threads <= 3
        assert descriptors <= 3


def test_an_order_within_nodes_crosses_the_network_with_the_rest_alone(reports):
    ranks, _ = reports
    for epoch in range(3):
        seen = sum((report["within"][epoch] for report in ranks), [])
        assert sorted(seen) == list(range(_EXAMPLES))
    assert ranks[0]["within"][0] != ranks[0]["within"][1]
    fetched = sum(report["within_statistics"]["fetched"] for report in ranks)
    assert fetched <= 3 * 2 * len(ranks)
    assert sum(report["within_statistics"]["prepared"] for report in ranks) == _EXAMPLES
    # Of the whole node, and over.
    assert ranks[0]["progress"]["done"] == ranks[0]["progress"]["examples"] < _EXAMPLES
    assert ranks[0]["progress"]["seconds_left"] == 0


def test_training_leaves_out_what_cannot_be_prepared(reports):
    ranks, _ = reports
    assert sum(report["skipped"] for report in ranks) == 2
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")

    def rows(begin):
        numbers = [
            number
            for number in range(begin, min(begin + _BATCH, _EXAMPLES))
            if number not in (13, 900)
        ]
        values = np.array(numbers, np.float32) / _EXAMPLES
        return np.stack([values, 1 - values], 1), values**2

    for _ in range(2):
        for begin in range(0, _EXAMPLES, _BATCH):
            model.train_on_batch(*rows(begin))
    for report in ranks:
        assert report["weights"] == ranks[0]["weights"]
        for found, wanted in zip(report["weights"], model.weights, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_rank_whose_script_has_ended_serves_on(reports):
    ranks, _ = reports
    last = ranks[-1]
    statistics = last["last_statistics"]
    assert statistics["prepared"] == statistics["owned"]
    assert statistics["fetched"] > 0
    assert len(last["last"]) == -(-_EXAMPLES // _BATCH)


def test_what_a_cache_does_is_in_events_and_tensorboard(reports):
    ranks, directory = reports
    kinds = {"data_read", "data_prepare", "data_fetch", "data_serve", "data_wait"}
    assert kinds <= set(sum((report["events"] for report in ranks), []))
    (path,) = (directory / "logs").glob("events*")
    tags = {
        value.tag
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert {"data/wait", "data/hits", "data_bytes/fetched", "data/skipped"} <= tags
