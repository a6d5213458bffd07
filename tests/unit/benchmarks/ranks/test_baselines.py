# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The baselines' servers and sums, with real processes and sockets, against NumPy."""

import concurrent.futures
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf

import tfdear.benchmarks

_FOLDER = str(pathlib.Path(tfdear.benchmarks.__file__).parent / "ranks")
_ADDRESSES = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
_ROWS, _COLUMNS, _STEPS = 20, 6, 3

pytestmark = pytest.mark.timeout(100)


@pytest.fixture
def module(monkeypatch):
    """Imports a module as ranks do, where their folder is the first one of the path."""
    monkeypatch.syspath_prepend(_FOLDER)
    yield lambda name: __import__(name)
    for path in pathlib.Path(_FOLDER).glob("*.py"):
        sys.modules.pop(path.stem, None)


def of_all_ranks(function):
    """What a function yields for every rank, called by all of them at once."""
    with concurrent.futures.ThreadPoolExecutor(len(_ADDRESSES)) as threads:
        return list(threads.map(function, range(len(_ADDRESSES)), timeout=60))


def check_steps(layers):
    """Trains a table of zeros, of which every rank has a layer, and compares its vectors."""
    generator = np.random.default_rng(0)
    ids = generator.integers(_ROWS, size=(_STEPS, len(layers), 5)).astype(np.int32)
    gradients = generator.integers(-4, 5, size=(*ids.shape, _COLUMNS)).astype(np.float32)
    expected = np.zeros([_ROWS, _COLUMNS], np.float32)
    for step in range(_STEPS):

        def train(rank, step=step):
            with tf.GradientTape() as tape:
                vectors = layers[rank](tf.constant(ids[step, rank]))
                loss = tf.reduce_sum(vectors * gradients[step, rank])
            tape.gradient(loss, layers[rank].trainable_variables)
            return vectors.numpy()

        for rank, vectors in enumerate(of_all_ranks(train)):
            np.testing.assert_array_equal(vectors, expected[ids[step, rank]])
        np.add.at(expected, ids[step].ravel(), -0.5 * gradients[step].reshape(-1, _COLUMNS))
    assert np.abs(expected).max() > 1


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_servers_of_rows_train_a_table(module, servers):
    served_tables = module("served_tables")

    def start(rank):
        tables = [(7, 2), (_ROWS, _COLUMNS)]
        return served_tables.Servers(rank, _ADDRESSES, servers, 7300 + servers, tables)

    started = of_all_ranks(start)
    try:
        # Every rank connects for all tables before one of them is used.
        layers = of_all_ranks(lambda rank: [started[rank].table(number) for number in (0, 1)])
        check_steps([of_rank[1] for of_rank in layers])
        for _, layer in layers:
            seconds = layer.finish()
            assert len(seconds["pull"]) == len(seconds["push"]) == _STEPS
    finally:
        for of_rank in started:
            of_rank.close()


def test_sums_of_blocks_train_a_table(module):
    block_sums = module("block_sums")
    sums = of_all_ranks(lambda rank: block_sums.BlockSums(rank, _ADDRESSES))
    layers = [block_sums.SummedTable(of_rank, _ROWS, _COLUMNS) for of_rank in sums]
    check_steps(layers)
    assert len(layers[0].finish()["blocks"]) == _STEPS


def test_slices_are_summed_and_waited_for(module):
    sliced_layers = module("sliced_layers")
    slices = of_all_ranks(lambda rank: sliced_layers.Slices(rank, _ADDRESSES))
    try:
        for _ in range(_STEPS):
            for of_rank in slices:
                of_rank.push(1, 5)
                of_rank.push(0, (2 << 20) + 1)  # Three slices.
            for of_rank in slices:
                of_rank.wait(0)
                of_rank.finish()
        # What comes is checked: a rank that contributes something else makes the sum wrong.
        slices[0]._gradient[:] = 2
        for of_rank in slices:
            of_rank.push(0, 5)
        with pytest.raises(RuntimeError, match="the sum of layer 0 over the ranks is wrong"):
            slices[1].wait(0)
    finally:
        for of_rank in slices:
            of_rank.close()
