# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Draws the wrong classes of a sampled softmax, the same on every rank that draws.

Class k has the probability log((k + 2) / (k + 1)) / log(classes + 1): about that of words which are
numbered by how frequent they are (Zipf's law). Draws go on until there are as many different ones
as wanted. All is a function of two numbers, so that ranks need not exchange anything.
"""

import math

import tensorflow as tf


def draw(
    seed: int | tf.Tensor, step: int | tf.Tensor, samples: int, classes: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Different classes, and how many draws it took.

    Args:
        seed: Any whole number.
        step: Any whole number; other steps have other classes.
        samples: How many, at most `classes`.
        classes: Their number; those that are frequent have low numbers.

    Returns:
        The classes, int32 [samples], in the order in which they were drawn; and the number of
        draws with those that repeated one, scalar int64.
    """
    seeds = tf.stack([tf.cast(seed, tf.int64), tf.cast(step, tf.int64)])

    def more(drawn: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # As many again: how many it takes is known only when they are there.
        count = tf.maximum(tf.size(drawn), 2 * samples)
        key = tf.random.experimental.stateless_fold_in(seeds, part)
        # With fewer bits, not every one of many classes could come.
        uniform = tf.random.stateless_uniform([count], key, dtype=tf.float64)
        found = tf.cast(tf.exp(uniform * math.log(classes + 1)), tf.int32) - 1
        return tf.concat([drawn, tf.clip_by_value(found, 0, classes - 1)], 0), part + 1

    def lacks(drawn: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
        return tf.size(tf.unique(drawn).y) < samples

    drawn, _ = tf.while_loop(
        lacks,
        more,
        more(tf.zeros([0], tf.int32), tf.constant(0, tf.int64)),
        shape_invariants=(tf.TensorShape([None]), tf.TensorShape([])),
        parallel_iterations=1,
    )
    different, places = tf.unique(drawn)
    tries = tf.argmax(places == samples - 1) + 1  # The first that has the last of them.
    return tf.ensure_shape(different[:samples], [samples]), tries


def log_expected_count(ids: tf.Tensor, tries: tf.Tensor, samples: int, classes: int) -> tf.Tensor:
    """The logarithm of how often a class is expected among the candidates, float32.

    It is what TensorFlow's samplers say.
    """
    ids = tf.cast(ids, tf.float64)
    probability = tf.math.log((ids + 2.0) / (ids + 1.0)) / math.log(classes + 1)
    count = tf.where(
        tries == samples,  # None repeated another one.
        probability * samples,
        -tf.math.expm1(tf.cast(tries, tf.float64) * tf.math.log1p(-probability)),
    )
    return tf.cast(tf.math.log(count), tf.float32)
