# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Paths of variables, as Keras has them, and what of them ranks can compare."""

import keras
import pytest
import tensorflow as tf

from tfdear.gradients import variable_names


class ResidualBlock(keras.layers.Layer):
    """A layer of a script."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], 2))

    def call(self, x):
        return x @ self.kernel


class Outer(keras.Model):
    """Builds its layers in its first call."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(3), ResidualBlock(), ResidualBlock(name="head_7")]

    def call(self, x):
        return [part(x) for part in self.parts]


def test_path_is_that_of_keras():
    made = []

    def creator(next_creator, **kwargs):
        made.append(variable_names.path(kwargs.get("name"), kwargs["initial_value"]))
        return next_creator(**kwargs)

    with tf.variable_creator_scope(creator):
        model = Outer()
        model(tf.zeros([1, 3]))
        cells = keras.layers.LSTM(2)
        cells.build((None, 2, 3))
    variables = [*model.variables, *cells.trainable_variables]
    assert len(variables) == 7
    assert {variable.path for variable in variables} <= set(made)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("sequential_3/dense_12/kernel", "dense/kernel"),
        ("dense/bias", "dense/bias"),
        ("run_of_monday/residual_block_2/dense_1/kernel", "residual_block/dense/kernel"),
        ("conv2d_4/kernel", "conv2d/kernel"),
        # Given by the script: these tell layers apart.
        ("head_7/kernel", "head_7/kernel"),
        ("conv_1/kernel", "conv_1/kernel"),
        ("layer_2/kernel", "layer_2/kernel"),
    ],
)
def test_numbers_of_keras_are_left_out(path, expected):
    assert variable_names.comparable(path) == expected
