# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Overflows in gradients of embeddings, of which a word has several rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdear


def rows(*values):
    """The gradient of a table of which one word was looked up several times."""
    values = np.array(values, "float32")[:, None]
    return tf.IndexedSlices(tf.constant(values), tf.fill([len(values)], 3), tf.constant([5, 1]))


@pytest.mark.parametrize("overflow", [np.inf, np.nan])
def test_one_row_of_a_word_may_overflow(overflow):
    with tfdear.DearStrategy().scope():
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    assert optimizer.check_finite([rows(1.0, 2.0), None])
    for values in ((overflow, 1.0), (1.0, overflow)):
        assert not optimizer.check_finite([rows(*values)])


@pytest.mark.parametrize("layer", [keras.layers.Embedding, tfdear.layers.ShardedEmbedding])
def test_a_step_that_overflows_changes_nothing(layer):
    strategy = tfdear.DearStrategy()
    with strategy.scope():
        words = layer(5, 1)
        words.build()
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
        optimizer.build(words.trainable_variables)
    before = words.get_weights()[0]

    def apply(*values):
        strategy.run(lambda: optimizer.apply([rows(*values)], words.trainable_variables))
        return words.get_weights()[0]

    np.testing.assert_array_equal(apply(np.inf, 1.0), before)
    assert np.any(apply(1.0, 1.0) != before)
