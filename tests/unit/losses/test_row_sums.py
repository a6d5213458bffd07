# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Losses that are sums over the rows of a batch are told from all others."""

import itertools

import keras
import pytest
import tensorflow as tf

from tfdear.losses import row_sums


def square(net, x, y):
    return keras.ops.square(net(x, training=True) - y)


def weights(net):
    return net.trainable_variables[0]


def rows(x):
    return tf.cast(tf.shape(x)[0], tf.float32)


def masked(net, x, y):
    mask = tf.cast(x[:, :1] > 0, tf.float32)
    return tf.reduce_sum(square(net, x, y) * mask) / (tf.reduce_sum(mask) + 1.0)


def weighted(net, x, y):
    chances = tf.abs(x[:, :1])
    return tf.reduce_sum(square(net, x, y) * chances / tf.reduce_sum(chances))


WEIGHT = tf.Variable(12.0)  # A multiple of the numbers of rows below.
SUMS = {
    "reduce_sum": lambda net, x, y: tf.reduce_sum(square(net, x, y)),
    "ops.sum": lambda net, x, y: keras.ops.sum(square(net, x, y)),
    "l2_loss": lambda net, x, y: tf.nn.l2_loss(net(x) - y),
    "a loss of rows": lambda net, x, y: keras.losses.mean_squared_error(y, net(x)),
    "columns, then rows": lambda net, x, y: tf.reduce_sum(tf.reduce_sum(square(net, x, y), -1)),
    "a term": lambda net, x, y: (
        0.1 * tf.reduce_sum(tf.abs(net(x))) / 3.0 + tf.reduce_mean(x) + tf.add_n(net.losses)
    ),
    "times a variable": lambda net, x, y: tf.reduce_sum(square(net, x, y)) * WEIGHT,
    "added up as by Keras": lambda net, x, y: keras.ops.sum(
        [tf.reduce_sum(square(net, x, y)), keras.ops.sum(weights(net))]
    ),
    "an added loss": lambda net, x, y: (
        keras.ops.mean(square(net, x, y)) + keras.ops.sum(keras.ops.sum(tf.abs(net(x))))
    ),
    "entropy": lambda net, x, y: tf.reduce_sum(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=net(x))
    ),
}
NO_SUMS = {
    "mean": lambda net, x, y: keras.ops.mean(square(net, x, y)),
    "means, added up as by Keras": lambda net, x, y: keras.ops.sum(
        [keras.ops.mean(square(net, x, y)), keras.ops.sum(weights(net))]
    ),
    "object": lambda net, x, y: keras.losses.MeanSquaredError()(y, net(x)),
    "by the count": lambda net, x, y: tf.reduce_sum(square(net, x, y)) / rows(x),
    "times the inverse": lambda net, x, y: (1.0 / rows(x)) * tf.reduce_sum(square(net, x, y)),
    "by the count inside": lambda net, x, y: tf.reduce_sum(square(net, x, y) / rows(x)),
    "times a known inverse": lambda net, x, y: (
        (1.0 / tf.cast(x.shape[0] or rows(x), tf.float32)) * tf.reduce_sum(square(net, x, y))
    ),
    "by the size": lambda net, x, y: (
        tf.reduce_sum(square(net, x, y)) / tf.cast(tf.size(y), tf.float32)
    ),
    "masked": masked,
    "weighted": weighted,
    "of weights": lambda net, x, y: (
        tf.reduce_mean(square(net, x, y))
        + tf.reduce_sum(weights(net) ** 2)
        + tf.nn.l2_loss(weights(net))
    ),
    "of columns": lambda net, x, y: tf.reduce_mean(tf.reduce_sum(net(x) ** 2, -1)),
    "of means": lambda net, x, y: tf.reduce_sum(tf.reduce_mean((net(x) - y) * x, 0)),
    "of losses": lambda net, x, y: tf.reduce_sum([tf.reduce_mean(square(net, x, y)), *net.losses]),
    "over time": lambda net, x, y: tf.reduce_sum(tf.reduce_mean(y @ tf.transpose(y), 0)),
}


def found(loss_of, divided=False, size=None):
    net = keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(3, "relu", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )

    @tf.function(input_signature=[tf.TensorSpec([size, 4]), tf.TensorSpec([size, 1])])
    def step(x, y):
        sums.append(row_sums.RowSums([x, y]))
        with tf.GradientTape() as tape:
            loss = loss_of(net, x, y)
        gradients = tape.gradient(loss, net.trainable_variables)
        sums[0].note_gradients(loss, gradients)
        if divided:
            gradients = [g if g is None else g / rows(x) for g in gradients]
        sums[0].note_applied(gradients)
        return loss

    sums: list[row_sums.RowSums] = []
    step.get_concrete_function()
    return sums[0].are_applied


@pytest.mark.parametrize("name", SUMS)
def test_sums_over_rows_are_found(name):
    assert found(SUMS[name])


# Not "a term" of two rows: its factor 0.1 may well be two rows of five columns. But dropout, which
# keeps every second value and doubles it, divides by nothing.
@pytest.mark.parametrize(
    "name, size", [*itertools.product(SUMS, (4, 6)), ("reduce_sum", 2), ("entropy", 2)]
)
def test_sums_over_a_known_number_of_rows_are_found(name, size):
    assert found(SUMS[name], size=size)


@pytest.mark.parametrize("size", (None, 4))
@pytest.mark.parametrize("name", NO_SUMS)
def test_others_are_not(name, size):
    assert not found(NO_SUMS[name], size=size)


def test_gradients_that_are_divided_before_they_are_applied_are_those_of_a_mean():
    assert not found(SUMS["reduce_sum"], divided=True)
