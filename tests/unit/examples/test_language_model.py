# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

import keras
import language_model
import numpy as np
import pytest
from scores import Scores


def test_windows_and_the_words_that_follow():
    inputs, labels = language_model.make_windows(np.arange(65))
    assert inputs.shape == labels.shape == (3, language_model.WINDOW)
    np.testing.assert_array_equal(inputs.ravel(), np.arange(60))
    np.testing.assert_array_equal(labels, inputs + 1)


def test_all_words_sampled_is_nearly_the_whole_softmax():
    keras.utils.set_random_seed(1)
    table = keras.layers.Embedding(30, 8, embeddings_initializer="normal")
    table.build((None, None))
    bias = keras.Variable(np.linspace(-1, 1, 30, dtype="float32"))
    states = np.random.default_rng(1).normal(size=(4, 5, 8)).astype("float32")
    labels = np.arange(20).reshape(4, 5)
    whole = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    expected = float(whole(labels, Scores(table, bias)(states)))
    sampled = language_model.SampledSoftmax(table, bias, samples=29)
    found = np.mean([sampled(labels, states) for _ in range(50)])
    assert found == pytest.approx(expected, rel=0.1)
