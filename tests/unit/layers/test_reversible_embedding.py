# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A reversible sharded embedding in one process, beside that of Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdear

ROWS, COLUMNS = 20, 6
PLAIN = getattr(keras.layers, "ReversibleEmbedding", None)
needs_plain = pytest.mark.skipif(PLAIN is None, reason="this Keras has no ReversibleEmbedding")


def make(**arguments):
    with tfdear.DearStrategy().scope():
        return tfdear.layers.ShardedEmbedding(ROWS, COLUMNS, reversible=True, **arguments)


@needs_plain
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"tie_weights": False}, {"logit_soft_cap": 0.5}, {"reverse_dtype": "float32"}],
    ids=str,
)
def test_it_computes_what_keras_does(arguments, dtype):
    layer, plain = make(dtype=dtype, **arguments), PLAIN(ROWS, COLUMNS, dtype=dtype, **arguments)
    ids = tf.constant([[1, 2, 3], [19, 0, 0]])
    layer.build(), plain.build()
    assert [v.path.split("/")[-1] for v in layer.weights] == [
        v.path.split("/")[-1] for v in plain.weights
    ]
    plain.set_weights(layer.get_weights())

    def compute(layer):
        with tf.GradientTape() as tape:
            vectors = layer(ids)
            scores = layer(vectors, reverse=True)
        variables = [variable.value for variable in layer.trainable_weights]
        return vectors, scores, *map(tf.convert_to_tensor, tape.gradient(scores, variables))

    for found, expected in zip(compute(layer), compute(plain), strict=True):
        assert found.dtype == expected.dtype
        # Gradients of a type of 16 bits are added up in another order.
        tolerance = 1e-6 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(
            tf.cast(found, tf.float32), tf.cast(expected, tf.float32), rtol=tolerance, atol=1e-6
        )


@needs_plain
def test_it_masks_what_keras_does():
    layer, plain = make(mask_zero=True), PLAIN(ROWS, COLUMNS, mask_zero=True)
    for ids in (tf.constant([[1, 0, 3]]), tf.constant([[1.0, 0.0, 3.0]])):
        for each in (layer, plain):
            vectors = each(ids)
            np.testing.assert_array_equal(vectors._keras_mask, [[True, False, True]])
            assert getattr(each(vectors * 1.0, reverse=True), "_keras_mask", None) is None


def test_shapes_and_types_of_symbolic_calls():
    layer = make(reverse_dtype="float64")
    ids = keras.Input((5,), dtype="int32")
    vectors = layer(ids)
    assert tuple(vectors.shape) == (None, 5, COLUMNS)
    scores = layer(vectors, reverse=True)
    assert tuple(scores.shape) == (None, 5, ROWS) and scores.dtype == "float64"
    model = keras.Model(ids, scores)
    assert model.predict(np.zeros((2, 5), "int32"), verbose=0).shape == (2, 5, ROWS)


@needs_plain
@pytest.mark.parametrize("tie_weights", [True, False])
def test_its_files_are_those_of_keras(tmp_path, tie_weights):
    layer = make(tie_weights=tie_weights, logit_soft_cap=3.0, partition="column", name="words")
    ids = keras.Input((5,), dtype="int32")
    with tfdear.DearStrategy().scope():
        model = keras.Model(ids, layer(layer(ids), reverse=True))
    inputs = np.arange(10).reshape(2, 5)
    expected = model.predict(inputs, verbose=0)
    path = tmp_path / "model.keras"
    model.save(path)
    plain = keras.models.load_model(path)
    assert type(plain.get_layer("words")) is PLAIN
    np.testing.assert_array_equal(plain.predict(inputs, verbose=0), expected)
    with tfdear.DearStrategy().scope():
        loaded = keras.models.load_model(path)
    found = loaded.get_layer("words")
    assert isinstance(found, tfdear.layers.ShardedEmbedding)
    assert (found.partition, found.tie_weights, found.logit_soft_cap) == ("column", tie_weights, 3)
    np.testing.assert_array_equal(loaded.predict(inputs, verbose=0), expected)
    copy = type(layer).from_config(layer.get_config())
    assert copy.get_config() == layer.get_config()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="no `combiner`"):
        make(combiner="sum")
    with pytest.raises(ValueError, match="tie_weights"):
        tfdear.layers.ShardedEmbedding(3, 2, tie_weights=False)
