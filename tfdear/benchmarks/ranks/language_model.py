# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A language model with two tables, whole or sharded, for Keras 2 and 3."""

import keras
import numpy as np
import tensorflow as tf

_BATCHES = 16


@tf.custom_gradient
def _densified(table):
    """The table, whose gradient is a tensor of its size in place of rows."""
    return tf.identity(table), tf.convert_to_tensor


class WholeTable(keras.layers.Layer):
    """A table as `keras.layers.Embedding` has it; `densify`: its gradient is a whole tensor."""

    def __init__(self, shape, densify):
        super().__init__()
        initializer = keras.initializers.RandomUniform(-0.05, 0.05, seed=1)
        self._table = self.add_weight(shape=shape, initializer=initializer, name="table")
        self._densify = densify
        self.built = True

    def get(self):
        """The table as `tf.gather` and the losses of TensorFlow take it."""
        # Keras 3 wraps the variable.
        variable = getattr(self._table, "value", self._table)
        variable = self._table if callable(variable) else variable
        return _densified(tf.convert_to_tensor(variable)) if self._densify else variable

    def call(self, ids):
        return tf.gather(self.get(), ids)


class LanguageModel(keras.Model):
    """Makes of each word a state from which the next word is guessed.

    `table` and `output_table`: layers with a row for each word; `bias` has a number for each.
    """

    def __init__(self, table, output_table, bias, units, columns):
        super().__init__()
        self.table, self.output_table, self.bias = table, output_table, bias
        self.lstm = keras.layers.LSTM(units, return_sequences=True)
        self.projection = keras.layers.Dense(columns)

    def call(self, ids):
        return self.projection(self.lstm(self.table(ids)))


def whole(words, columns, units, samples, densify):
    """A model with whole tables, and its loss."""
    table, output_table = (WholeTable((words, columns), densify) for _ in range(2))
    bias = WholeTable((words,), densify)

    def loss(labels, states):
        losses = tf.nn.sampled_softmax_loss(
            weights=output_table.get(),
            biases=bias.get(),
            labels=tf.reshape(labels, [-1, 1]),
            inputs=tf.reshape(states, [-1, columns]),
            num_sampled=samples,
            num_classes=words,
        )
        return tf.reshape(losses, tf.shape(labels))

    return LanguageModel(table, output_table, bias, units, columns), loss


def data(words, windows, length):
    """Windows of words, of which the most frequent ones are as frequent as those of a language."""
    generator = np.random.default_rng(1)
    uniform = generator.random([_BATCHES * windows, length + 1])
    ids = np.floor(np.exp(uniform * np.log(words))).astype(np.int32) - 1
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = tf.data.Dataset.from_tensor_slices((ids[:, :-1], ids[:, 1:]))
    return dataset.batch(windows).repeat().with_options(options)
