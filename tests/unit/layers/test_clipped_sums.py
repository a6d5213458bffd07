# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Clipping of accumulated gradients of sharded tables by norms that are no finite numbers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdear

ROWS, WIDTH, STEPS = 4, 3, 2


def train(is_sharded, factor, **arguments):
    optimizer = keras.optimizers.SGD(0.5, gradient_accumulation_steps=STEPS, **arguments)
    layer = tfdear.layers.ShardedEmbedding if is_sharded else keras.layers.Embedding
    words = layer(ROWS, WIDTH, embeddings_initializer="ones")
    words.build()
    for _ in range(STEPS):
        gradient = np.zeros((ROWS, WIDTH), "float32")
        gradient[1] = [factor, 1, -2]
        optimizer.apply([tf.constant(gradient)], words.trainable_variables)
    return keras.ops.convert_to_numpy(words.embeddings)


@pytest.mark.parametrize("factor", [0.01, 3.0, 1e25, np.inf, np.nan])
@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm"])
def test_as_keras_clips(clip, factor):
    expected = train(False, factor, **{clip: 2.5})
    with tfdear.DearStrategy().scope():
        found = train(True, factor, **{clip: 2.5})
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
