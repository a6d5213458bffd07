# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The blocks of Transformers, which translate in one example of this folder and read in another."""

from __future__ import annotations

import dataclasses

import keras

layers = keras.layers


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Makes blocks of the same sizes.

    What goes around a sublayer is not normed, only what goes through it: deep stacks then train
    with a short warm-up.

    Args:
        width: of all states.
        inner: width within the feed-forward sublayer.
        heads: of each attention.
        dropout: share of what sublayers add that is dropped.
        activation: within the feed-forward sublayer.
    """

    width: int
    inner: int
    heads: int
    dropout: float
    activation: str = "relu"

    def encoder(self, x, is_token, count: int):
        """Returns the normed states of tokens that look at each other.

        Args:
            x: states, of shape (rows, tokens, width).
            is_token: of shape (rows, 1, tokens): False for padding.
            count: number of blocks.
        """
        for _ in range(count):
            query = layers.LayerNormalization()(x)
            x = self._add(x, self._attention()(query, query, attention_mask=is_token))
            x = self._add(x, self._feed_forward(x))
        return layers.LayerNormalization()(x)

    def decoder(self, x, encoded, is_token, count: int):
        """Returns the normed states of tokens that look at those before them and at the source.

        Args:
            x: states, of shape (rows, tokens, width).
            encoded: the source's, from `encoder`.
            is_token: of the source.
            count: number of blocks.
        """
        for _ in range(count):
            query = layers.LayerNormalization()(x)
            x = self._add(x, self._attention()(query, query, use_causal_mask=True))
            query = layers.LayerNormalization()(x)
            x = self._add(x, self._attention()(query, encoded, attention_mask=is_token))
            x = self._add(x, self._feed_forward(x))
        return layers.LayerNormalization()(x)

    def _attention(self):
        return layers.MultiHeadAttention(self.heads, self.width // self.heads)

    def _feed_forward(self, x):
        inner = layers.Dense(self.inner, activation=self.activation)(layers.LayerNormalization()(x))
        return layers.Dense(self.width)(inner)

    def _add(self, x, change):
        return x + layers.Dropout(self.dropout)(change)
