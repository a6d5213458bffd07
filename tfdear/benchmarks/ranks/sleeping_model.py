# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A Keras model whose layers sleep as long as a trace says, for Keras 2 and 3.

Its weights and tables are real, and so is all that is done with their gradients; the gradients
themselves are ones.
"""

import itertools
import time

import keras
import numpy as np
import sleeping  # type: ignore[import-not-found]
import tensorflow as tf

# Steps of every turn that are not measured: they find an idle link.
FIRST_STEPS = 1
# How long the machine may need to hand on data that an accelerator would have already.
_TOLERANCE = 2e-3

_device = sleeping.Device()


class SleepingLayer(keras.layers.Layer):
    """Takes `forward` and `backward` seconds; has weights of the given numbers of elements."""

    def __init__(self, forward, backward, sizes=()):
        super().__init__()
        self._forward, self._backward = forward, backward
        for number, size in enumerate(sizes):
            self.add_weight(shape=(size,), initializer="zeros", name=f"weight_{number}")
        self.built = True

    def call(self, state, needed=()):
        """Passes `state` on after the forward pass, which waits for what is `needed`, too."""
        values = [tf.convert_to_tensor(weight) for weight in self.trainable_weights]
        return self._pass_on(state, *values, *needed)

    def compute_output_shape(self, input_shape):
        return input_shape

    @property
    def _pass_on(self):
        @tf.custom_gradient
        def pass_on(state, *values):
            shapes = [tf.shape(value) for value in values]
            with tf.control_dependencies(values):
                result = spend(state, self._forward)

            def gradient(upstream):
                state_gradient = spend(upstream, self._backward)
                with tf.control_dependencies([state_gradient]):
                    return state_gradient, *(tf.ones(shape) for shape in shapes)

            return result, gradient

        return pass_on


def spend(state, seconds):
    """The same tensor, after a time in which the device computes."""
    if seconds <= 0:
        return tf.identity(state)

    def sleep(value):
        _device.catch_up(_TOLERANCE)
        _device.compute(seconds)
        return value

    result = tf.numpy_function(sleep, [state], state.dtype)
    result.set_shape(state.shape)
    return result


class SleepingModel(keras.Model):
    """Layers one after the other; some of them begin with a lookup.

    Args:
        layers: of the model, in the order of the forward pass.
        tables: layers that turn ids into vectors, by the place of the layer that needs these.
    """

    def __init__(self, layers, tables):
        super().__init__()
        self._layers_in_order = list(layers)
        self._places = sorted(tables)
        self._tables = [tables[place] for place in self._places]

    def call(self, inputs):
        # One number for each of the rank's examples; the ids of each table stand beside them.
        state, *ids = inputs
        vectors = {
            place: table(own)
            for place, table, own in zip(self._places, self._tables, ids, strict=True)
        }
        for place, layer in enumerate(self._layers_in_order):
            state = layer(state, [vectors[place]] if place in vectors else [])
        return state


def mean_output(labels, outputs):
    """A loss without computation."""
    del labels
    return outputs


def endless(ranks, batches):
    """A data set of global batches, again and again.

    `batches`: for each table an array of [batches, ranks, ids], or a list of arrays of [ranks, ids]
    if their lengths differ. An example has all ids of a rank.
    """
    state = np.zeros([ranks, 1], np.float32)

    def generate():
        for number in itertools.count():
            ids = (table[number % len(table)] for table in batches)
            yield (state, *ids), state

    one = tf.TensorSpec([ranks, 1], tf.float32)
    ids = [tf.TensorSpec([ranks, None], tf.int32) for _ in batches]
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = tf.data.Dataset.from_generator(generate, output_signature=((one, *ids), one))
    return dataset.with_options(options)


class _StepEnds(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.times = []

    def on_train_batch_end(self, batch, logs=None):
        del batch, logs
        self.times.append(time.monotonic())


def seconds_of_steps(model, dataset, steps, finish=lambda: None):
    """Trains; returns the seconds of each of `steps` steps after the first ones."""
    ends = _StepEnds()
    model.fit(dataset, epochs=1, steps_per_epoch=FIRST_STEPS + steps, verbose=0, callbacks=[ends])
    finish()
    return np.diff(ends.times[FIRST_STEPS - 1 :]).tolist()
