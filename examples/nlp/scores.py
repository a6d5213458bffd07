# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Scores of all words by a table of their embeddings, read the other way around."""

from __future__ import annotations

import keras
import tensorflow as tf


class Scores(keras.layers.Layer):
    """Compares states with the row of each word.

    Args:
        table: layer with a row for each word.
        bias: of each word, where another layer has it; by default this one has.
        name: as of any layer.
    """

    def __init__(
        self,
        table: keras.layers.Embedding,
        bias: keras.Variable | None = None,
        name: str | None = None,
    ):
        super().__init__(name=name)
        self._table, self._bias = table, bias

    def build(self, shape):
        if self._bias is None:
            self._bias = self.add_weight(shape=(self._table.input_dim,), initializer="zeros")

    def call(self, states):
        return tf.matmul(states, self._table.embeddings, transpose_b=True) + self._bias
