# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Averaging what all ranks have changes no bit, for any number of ranks and weights."""

import numpy as np
import pytest
import tensorflow as tf

from tfdear.gradients import exact_mean


def mean_over_ranks(values, weights):
    weights = [tf.constant(weight, tf.float64) for weight in weights]
    terms = [exact_mean.terms(*pair) for pair in zip(values, weights, strict=True)]
    # In any order of summation: that of a ring begins at another rank for each shard.
    sums = [tf.add_n(list(parts)) for parts in zip(*terms, strict=True)]
    return exact_mean.mean(sums, tf.add_n(weights), values[0].dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("weights", [[1] * 3, [1] * 7, [3, 3, 2], [22, 21, 0, 21, 1], [99991] * 7])
def test_equal_values_stay_as_they_are(dtype, weights):
    random = np.random.RandomState(0)
    scales = 10.0 ** random.randint(-4, 5, 20_000)
    value = tf.cast(random.randn(20_000) * scales, dtype)
    value = tf.concat([value, tf.cast([0.0, -0.0, 0.1, np.inf, -np.inf], dtype)], 0)
    if 0 in weights:
        value = tf.where(tf.math.is_inf(tf.cast(value, "float64")), tf.zeros_like(value), value)
    averaged = mean_over_ranks([value] * len(weights), weights)
    np.testing.assert_array_equal(
        tf.cast(averaged, "float64").numpy(), tf.cast(value, "float64").numpy()
    )


@pytest.mark.parametrize("ranks", [3, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_counter_is_exact_after_many_steps(ranks, dtype):
    @tf.function
    def count():
        counter, annealed = tf.zeros([], dtype), tf.ones([], dtype)
        one = tf.ones([], tf.float64)
        for _ in tf.range(20_000):
            for rate in (True, False):
                written = counter + 1 if rate else annealed * tf.constant(0.9999, dtype)
                sums = [one * 0.0 for _ in exact_mean.terms(written, one)]
                for _ in range(ranks):
                    parts = exact_mean.terms(written, one)
                    sums = [a + b for a, b in zip(sums, parts, strict=True)]
                value = exact_mean.mean(sums, one * ranks, written.dtype)
                counter, annealed = (value, annealed) if rate else (counter, value)
        return counter, annealed

    counter, annealed = count()
    assert float(counter) == 20_000
    expected = np.ones([], dtype)
    for _ in range(20_000):
        expected = expected * np.asarray(0.9999, dtype)
    assert annealed.numpy() == expected


def test_different_values_are_averaged_by_their_weights():
    values = [tf.constant([1.0, 4.0], tf.float64), tf.constant([2.0, 7.0], tf.float64)]
    np.testing.assert_allclose(mean_over_ranks(values, [3, 1]), [1.25, 4.75], rtol=1e-15)
