# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What tells functions apart, and what does not."""

import keras
import tensorflow as tf

from tfdear.data import graph_text


def traced(scale, constant):
    """A function of layers and of functions, with names that count what was made before."""
    keras.utils.set_random_seed(1)
    layer = keras.layers.Dense(2)
    layer.build((None, 1))
    captured = tf.Variable([constant])

    def compute(number):
        values = tf.reshape(tf.cast(number, tf.float32), [1, 1])
        mapped = tf.map_fn(lambda value: value * scale, captured.read_value())
        return tf.cond(number > 1, lambda: layer(values) + mapped, lambda: tf.zeros([1, 2]))

    # Of a variable that nobody holds any more nothing is known.
    function = tf.function(compute).get_concrete_function(tf.TensorSpec([], tf.int64))
    function.kept = captured, layer
    return function


def test_names_of_a_process_do_not_count():
    one, other = traced(2.0, 3.0), traced(2.0, 3.0)
    assert str(one.graph.as_graph_def()) != str(other.graph.as_graph_def())
    assert graph_text.text_of(one) == graph_text.text_of(other)
    assert graph_text.captured_values(one) == graph_text.captured_values(other)


def test_what_is_computed_does():
    one = traced(2.0, 3.0)
    assert graph_text.text_of(one) != graph_text.text_of(traced(2.5, 3.0))
    other = traced(2.0, 3.5)
    assert graph_text.text_of(one) == graph_text.text_of(other)
    assert graph_text.captured_values(one) != graph_text.captured_values(other)


def test_inputs_in_another_order_count():
    def difference(turned):
        spec = tf.TensorSpec([], tf.int64)
        return tf.function(
            lambda one, other: other - one if turned else one - other
        ).get_concrete_function(spec, spec)

    assert graph_text.text_of(difference(True)) != graph_text.text_of(difference(False))
