# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The wrong classes of a sampled softmax."""

import numpy as np
import pytest
import tensorflow as tf

from tfdear.losses import candidates


@pytest.mark.parametrize("samples, classes", [(1, 1), (1, 50), (20, 50), (50, 50), (300, 5000)])
def test_they_are_different_and_in_range(samples, classes):
    for step in range(3):
        ids, tries = candidates.draw(1, step, samples, classes)
        assert len(set(ids.numpy().tolist())) == samples
        assert ids.numpy().min() >= 0 and ids.numpy().max() < classes
        assert tries >= samples


def test_they_are_a_function_of_seed_and_step():
    def ids(seed, step):
        compiled = tf.function(lambda step: candidates.draw(seed, step, 20, 1000)[0])
        np.testing.assert_array_equal(
            compiled(tf.constant(step)), candidates.draw(seed, step, 20, 1000)[0]
        )
        return tuple(compiled(tf.constant(step)).numpy())

    assert ids(1, 0) == ids(1, 0)
    assert len({ids(1, 0), ids(1, 1), ids(2, 0), ids(2, 1)}) == 4


def test_they_come_as_often_as_is_expected():
    classes, samples, steps = 40, 8, 2000

    @tf.function
    def draw(step):
        ids, tries = candidates.draw(7, step, samples, classes)
        expected = tf.exp(candidates.log_expected_count(tf.range(classes), tries, samples, classes))
        return ids, expected

    counts, expected = np.zeros(classes), np.zeros(classes)
    for step in range(steps):
        ids, chances = draw(tf.constant(step))
        counts[ids.numpy()] += 1
        expected += chances.numpy()
    # Five standard deviations of a class, and the formula's own error, which TensorFlow has too.
    np.testing.assert_allclose(counts, expected, rtol=0.06, atol=5 * np.sqrt(counts.max()))
    assert abs(expected.sum() / steps - samples) < 0.3


@pytest.mark.parametrize("samples", [1, 5, 30])
def test_the_expected_counts_are_those_of_tensorflow(samples):
    for seed in range(4):
        drawn, of_labels, of_drawn = tf.random.log_uniform_candidate_sampler(
            [[3, 17]], 2, samples, True, 100, seed=seed
        )
        expected = np.concatenate([of_labels.numpy()[0], of_drawn.numpy()])
        ids = tf.concat([[3, 17], tf.cast(drawn, tf.int32)], 0)
        # It does not tell how many draws it took.
        errors = [
            np.abs(np.exp(candidates.log_expected_count(ids, tries, samples, 100)) - expected).max()
            for tries in tf.range(samples, 40 * samples, dtype=tf.int64)
        ]
        assert min(errors) < 1e-6
