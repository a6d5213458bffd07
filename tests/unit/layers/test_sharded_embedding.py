# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a sharded embedding takes and refuses, in one process."""

import os
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdear

ROWS, COLUMNS = 20, 6


def make(**arguments):
    with tfdear.DearStrategy().scope():
        layer = tfdear.layers.ShardedEmbedding(ROWS, COLUMNS, name="words", **arguments)
        layer.build()
    return layer


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("by_name", [False, True])
def test_weights_in_a_functional_model(combiner, by_name):
    layer = make(combiner=combiner)
    inputs = [keras.Input((3,), dtype="int32"), keras.Input((3,))]
    outputs = layer(inputs[0], weights=inputs[1]) if by_name else layer(*inputs)
    assert outputs.shape == (None, COLUMNS)
    ids = np.array([[1, 2, 2], [0, 19, 3]])
    weights = np.array([[1.0, 0.5, 2.0], [3.0, 1.0, 0.25]], "float32")
    vectors = layer.get_weights()[0][ids]
    divisor = {
        "sum": np.ones(2),
        "mean": weights.sum(1),
        "sqrtn": np.sqrt((weights**2).sum(1)),
    }[combiner]
    np.testing.assert_allclose(
        keras.Model(inputs, outputs).predict([ids, weights], verbose=0),
        (vectors * weights[..., None]).sum(1) / divisor[:, None],
        rtol=1e-6,
    )


_RAGGED = tf.ragged.constant([[1, 2, 3], [4]])
_SPARSE = tf.SparseTensor([[0, 0], [1, 1]], [1, 2], [2, 2])


@pytest.mark.parametrize(
    ("ids", "weights"),
    [
        (tf.constant([[1, 2, 3]]), tf.constant([[5.0]])),
        (tf.constant([[1, 2, 3], [4, 5, 6]]), tf.ones([3, 2])),
        (tf.constant([[1, 2, 3]]), _RAGGED.with_values(tf.ones(4))),
        (_RAGGED, tf.ones([4])),
        (_RAGGED, tf.ragged.constant([[1.0], [1.0, 1.0, 1.0]])),
        (_SPARSE, tf.ones([2, 2])),
        (_SPARSE, tf.SparseTensor([[0, 0], [1, 0]], [1.0, 1.0], [2, 2])),
    ],
)
def test_weights_of_another_structure_are_refused(ids, weights):
    layer = make(combiner="sum")
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="structure of the ids"):
        layer(ids, weights)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="structure of the ids"):
        tf.function(layer)(ids, weights)


def test_weights_of_shapes_known_later():
    layer = make(combiner="sum", embeddings_initializer="ones")
    unknown = [tf.TensorSpec([None, None], dtype) for dtype in (tf.int32, tf.float32)]
    call = tf.function(layer, input_signature=unknown)
    np.testing.assert_allclose(call([[1, 2]], [[2.0, 3.0]]), np.full((1, COLUMNS), 5.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="structure of the ids"):
        call([[1, 2]], [[2.0]])


def test_ids_by_the_name_that_keras_has_for_them():
    layer = make()
    np.testing.assert_array_equal(layer(inputs=tf.constant([3])), layer(tf.constant([3])))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_tables_of_other_types_are_refused(dtype):
    with pytest.raises(ValueError, match=f"layer 'words' has values of type {dtype}"):
        make(dtype=dtype)
    with tfdear.DearStrategy().scope():
        model = keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                keras.layers.Embedding(ROWS, COLUMNS, name="words", dtype=dtype),
            ]
        )
    with pytest.raises(ValueError, match=f"layer 'words' has values of type {dtype}"):
        tfdear.layers.shard(model)
    assert type(model.layers[0]) is keras.layers.Embedding


def test_no_low_rank_adaptation():
    layer = make()
    with pytest.raises(ValueError, match="low-rank adaptation.*a rank of 2"):
        layer.enable_lora(2)
    with pytest.raises(ValueError, match="low-rank adaptation.*a rank of 3"):
        make(lora_rank=3)
    assert len(layer.weights) == 1


@pytest.mark.parametrize("combiner", [None, "sum"])
def test_gradients_through_a_loop_are_refused(combiner):
    layer = make(combiner=combiner)

    @tf.function
    def gradient(ids):
        with tf.GradientTape() as tape:
            _, total = tf.while_loop(
                lambda turn, total: turn < 4,
                lambda turn, total: (
                    turn + 1,
                    total + tf.reduce_sum(layer(ids[:, turn : turn + 1])),
                ),
                (0, 0.0),
            )
        return tape.gradient(total, layer.trainable_variables)

    with pytest.raises(ValueError, match="before the loop"):
        gradient(tf.constant([[1, 2, 3, 4]]))


def test_functions_of_tensorflow_take_the_variable_for_its_value():
    layer = make()
    variable = layer.embeddings.value
    with tfdear.DearStrategy().scope():
        optimizer = keras.optimizers.Adam(0.1)
        for row in (1, 2, 3):  # The others miss updates.
            rows = tf.IndexedSlices(tf.ones([1, COLUMNS]), [row], [ROWS, COLUMNS])
            optimizer.apply([rows], layer.trainable_variables)
    found = [tf.abs(variable), tf.maximum(variable, 0), variable * 2.0]
    value = layer.get_weights()[0]
    for one, other in zip(found, (np.abs(value), np.maximum(value, 0), value * 2), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_variable_as_an_argument_of_a_function():
    layer = make()
    total = tf.function(lambda variable: tf.reduce_sum(tf.convert_to_tensor(variable), 1))
    np.testing.assert_allclose(
        total(layer.embeddings.value), layer.get_weights()[0].sum(1), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("ids", "shape"),
    [([3, 99], [2, 6]), ([1, -2], [2, 6]), ([1], [1, 2]), ([1, 2], [1, 6]), ([1], [6])],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gradient_that_does_not_fit_is_refused_and_the_table_stays_of_use(ids, shape, compiled):
    strategy = tfdear.DearStrategy()
    with strategy.scope():
        layer = tfdear.layers.ShardedEmbedding(ROWS, COLUMNS)
        layer.build()
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(layer.trainable_variables)

    def apply(ids, shape):
        def step():
            whole = tf.constant([ROWS, COLUMNS])
            gradient = tf.IndexedSlices(tf.ones(shape), tf.constant(ids, tf.int64), whole)
            optimizer.apply([gradient], layer.trainable_variables)

        def run():
            strategy.run(step)

        (tf.function(run) if compiled else run)()

    before = layer.get_weights()[0]
    with pytest.raises((ValueError, tf.errors.OpError)):
        apply(ids, shape)
    np.testing.assert_array_equal(layer(tf.range(ROWS)), before)
    apply([5], [1, COLUMNS])
    before[5] -= 1
    np.testing.assert_array_equal(layer(tf.range(ROWS)), before)


def test_an_error_elsewhere_in_a_step_ends_a_lookup_that_has_not_begun():
    # The memory of a step that has ended is overwritten.
    code = """
        import tensorflow as tf
        import tfdear

        with tfdear.DearStrategy().scope():
            layer = tfdear.layers.ShardedEmbedding(100, 8)
            layer.build()

        @tf.function
        def step(ids, right):
            matrix = tf.random.stateless_uniform([300, 300], [1, 2])
            late = tf.reduce_sum(matrix @ matrix @ matrix @ matrix)
            vectors = layer(ids + tf.cast(0.0 * late, ids.dtype))
            with tf.control_dependencies([tf.debugging.Assert(right, ["wrong"])]):
                return tf.identity(vectors)

        ids = tf.range(50)
        for _ in range(500):
            try:
                step(ids, False)
            except tf.errors.InvalidArgumentError:
                continue
            raise SystemExit("there was no error")
        assert step(ids, True).shape == (50, 8)
        """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"MALLOC_PERTURB_": "165"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.parametrize("clip", [{}, {"gradient_accumulation_steps": 2, "clipnorm": 0.1}])
def test_functions_may_run_eagerly(clip):
    def train():
        with tfdear.DearStrategy().scope():
            layer = tfdear.layers.ShardedEmbedding(ROWS, COLUMNS, embeddings_initializer="ones")
            model = keras.Sequential(
                [
                    keras.Input((2,), dtype="int32"),
                    layer,
                    keras.layers.Flatten(),
                    keras.layers.Dense(1, kernel_initializer="ones"),
                ]
            )
            model.compile(keras.optimizers.Adam(0.1, **clip), "mse")
        ids = np.array([[1, 2], [3, 3], [0, 19], [5, 2]])
        model.fit(ids, np.zeros((4, 1)), batch_size=2, epochs=2, shuffle=False, verbose=0)
        return layer.get_weights()[0]

    expected = train()
    tf.config.run_functions_eagerly(True)
    try:
        found = train()
    finally:
        tf.config.run_functions_eagerly(False)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (expected[1] != 1).all()
