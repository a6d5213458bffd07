# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Gradients through collectives are those that finite differences show."""

import json

import numpy as np
import pytest
import ranks

SCRIPT = """
    import numpy as np
    import tensorflow as tf

    import tfdear

    STEP = 1e-6

    strategy = tfdear.DearStrategy()
    rank, size = strategy.rank, strategy.world_size
    random = np.random.RandomState(rank)


    def rows(count):
        return tf.constant(random.uniform(-1, 1, (count, 2)))


    def exchange(splits):
        return lambda x: strategy.all_to_all(x, splits)[0]


    # Some rank sends nothing to some other, and one nothing at all.
    splits = [(2 * rank + 3 * peer) % 4 if rank != 1 else 0 for peer in range(size)]
    inner_splits = [(rank + peer) % 3 for peer in range(strategy.local_size)]
    cases = {
        "all_reduce": (strategy.all_reduce, rows(3)),
        "all_reduce of two": (lambda x: strategy.all_reduce([x, 2 * x])[1], rows(2)),
        "all_gather": (strategy.all_gather, rows([3, 0, 2, 1][rank])),
        "gathered rows, some twice": (
            lambda x: tf.gather(strategy.all_gather(x), [rank, 0, 0]), rows(2)),
        "reduce_scatter": (strategy.reduce_scatter, rows(7)),
        "reduce_scatter of few rows": (strategy.reduce_scatter, rows(2)),
        "reduce_scatter of nothing": (strategy.reduce_scatter, rows(0)),
        "all_to_all": (exchange(splits), rows(sum(splits))),
        "all_to_all of nothing": (exchange([0] * size), rows(0)),
        "broadcast": (lambda x: strategy.broadcast(x, size - 1), rows(3)),
        "broadcast, gathered": (lambda x: tf.gather(strategy.broadcast(x), [1, 1]), rows(2)),
        "all_gather in a node": (lambda x: strategy.all_gather(x, "intra_node"), rows(rank)),
        "all_to_all in a node": (
            lambda x: strategy.all_to_all(x, inner_splits, "intra_node")[0],
            rows(sum(inner_splits))),
        "reduce_scatter between nodes": (
            lambda x: strategy.reduce_scatter(x, "inter_node"), rows(3)),
        "all_reduce between nodes": (lambda x: strategy.all_reduce(x, "inter_node"), rows(3)),
        "broadcast in a node": (lambda x: strategy.broadcast(x, 0, "intra_node"), rows(3)),
    }

    for name, (collective, start) in cases.items():

        def loss(x):
            result = collective(x)
            places = tf.reshape(tf.range(tf.size(result), dtype=tf.float64), tf.shape(result))
            # Every rank has a loss of its own.
            return tf.reduce_sum(tf.sin(result + places) * (rank + 1))

        def gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = loss(x)
            return tape.gradient(value, x)

        total = tf.function(lambda x: strategy.all_reduce(loss(x)))
        counts = strategy.all_gather([tf.size(start)]).numpy()
        expected = np.zeros(start.shape)
        for other, count in enumerate(counts):
            for place in range(count):
                moved = np.zeros(start.shape)
                if other == rank:
                    moved.flat[place] = STEP
                difference = (total(start + moved) - total(start - moved)) / (2 * STEP)
                if other == rank:
                    expected.flat[place] = difference
        for form, function in {"eager": gradient, "compiled": tf.function(gradient)}.items():
            found = tf.convert_to_tensor(function(start))  # Of one rank, rows.
            np.testing.assert_allclose(
                found, expected, rtol=1e-6, atol=1e-7, err_msg=f"{name}, {form}, rank {rank}")
        size_of_all = strategy.all_reduce(np.abs(expected).sum())
        assert (size_of_all > 0) == (counts.sum() > 0), name
    print("done", len(cases))
"""


@pytest.mark.multi_process
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "world_size",
    [
        1,
        *(pytest.param(size, marks=pytest.mark.long) for size in (2, 4)),
        pytest.param(3, marks=pytest.mark.newest_only),
    ],
)
def test_gradients_are_those_of_finite_differences(world_size):
    nodes = [0, 0, 1, 1] if world_size == 4 else [0] * world_size
    outcomes = ranks.run_ranks(
        world_size, SCRIPT, env=lambda rank: {"TFDEAR_NODE_RANK": str(nodes[rank])}
    )
    for code, output in outcomes:
        assert code == 0, output[-4000:]
        assert "done 16" in output


MODEL = """
    import json

    import keras
    import numpy as np
    import tensorflow as tf

    import tfdear

    strategy = tfdear.DearStrategy()
    keras.utils.set_random_seed(1)


    class Divided(keras.layers.Layer):
        '''A dense layer of which every rank computes some columns, for the rows of all ranks.'''

        def build(self, shape):
            self.kernel = self.add_weight(shape=(shape[-1], 6), initializer="glorot_uniform")

        def call(self, inputs):
            kernel = strategy.broadcast(self.kernel.value, strategy.world_size - 1)
            begin = 6 * strategy.rank // strategy.world_size
            end = 6 * (strategy.rank + 1) // strategy.world_size
            columns = tf.transpose(tf.matmul(strategy.all_gather(inputs), kernel[:, begin:end]))
            outputs = tf.transpose(strategy.all_gather(columns))
            counts = strategy.all_gather(tf.shape(inputs)[:1])
            first = tf.reduce_sum(counts[: strategy.rank])
            return tf.ensure_shape(outputs[first : first + tf.shape(inputs)[0]], (None, 6))


    with strategy.scope():
        model = keras.Sequential([
            keras.layers.Input((4,)), keras.layers.Dense(5, "tanh"), Divided(),
            keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    random = np.random.RandomState(0)
    # Of the last batch, of three, ranks have different numbers.
    x = random.randn(27, 4).astype("float32")
    y = x.sum(1, keepdims=True)
    losses = model.fit(
        tf.data.Dataset.from_tensor_slices((x, y)).batch(8), epochs=4, verbose=0).history["loss"]
    weights = [float(value) for array in model.get_weights() for value in array.ravel()]
    print("found " + json.dumps([losses, weights]))
"""


@pytest.mark.multi_process
@pytest.mark.timeout(180)
def test_a_layer_that_is_divided_among_the_ranks_trains_as_in_one_process():
    def train(world_size):
        outcomes = ranks.run_ranks(world_size, MODEL)
        for code, output in outcomes:
            assert code == 0, output[-4000:]
        lines = [
            next(line for line in output.splitlines() if line.startswith("found "))
            for _, output in outcomes
        ]
        return [np.concatenate(json.loads(line.removeprefix("found "))) for line in lines]

    (expected,) = train(1)
    for world_size in (2, 3):
        for found in train(world_size):
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
