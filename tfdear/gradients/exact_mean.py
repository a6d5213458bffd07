# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Weighted means over ranks, exact where all ranks have the same value.

[Note: Means of equal values are exact]
A counter that is off by one rounding in every step is off by thousands of them after as many steps.
Here every product and every partial sum of equal values is exact, so their mean is the value
itself: weights are whole numbers, and a value has so few digits that its multiples fit into a
float64. A float64 is split into two values with half of its digits each.
"""

import tensorflow as tf

# Clears the lower 27 of the 53 digits.
_UPPER_HALF = ~((1 << 27) - 1)


def terms(value: tf.Tensor, weight: tf.Tensor) -> list[tf.Tensor]:
    """What a rank contributes to the sums from which `mean` computes the mean.

    `weight` is a scalar float64, a whole number; the ranks' together are less than 2 ** 26.
    """
    if value.dtype != tf.float64:
        return [tf.cast(value, tf.float64) * weight]
    bits = tf.bitwise.bitwise_and(tf.bitcast(value, tf.int64), tf.constant(_UPPER_HALF, tf.int64))
    upper = tf.bitcast(bits, tf.float64)
    lower = tf.where(tf.math.is_finite(value), value - upper, tf.zeros_like(value))
    return [upper * weight, lower * weight]


def mean(sums: list[tf.Tensor], total: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """The mean, from the sums of `terms` over the ranks and the sum of the ranks' weights."""
    return tf.cast(tf.add_n([part / total for part in sums]), dtype)
