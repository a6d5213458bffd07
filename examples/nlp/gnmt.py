# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains GNMT, a translator of stacked LSTMs with attention, from English into German.

    make text                                               # once
    tfdear run -n 2 examples/nlp/gnmt.py                    # two minutes on two cores
    tfdear run -n 2 examples/nlp/gnmt.py --steps 5000 --translate 256

It needs tensorflow-text, sentencepiece and, to translate, sacrebleu: `pip install "tfdear[text]"`.
"""

from __future__ import annotations

import dataclasses

import keras
import translation
from text.sentence_pieces import PADDING

import tfdear

layers = keras.layers


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Sizes of the model and of its training."""

    pieces: int
    rows: int | None  # Of the tables, where they are to have more than there are pieces.
    width: int
    depth: int  # LSTMs of the encoder, and of the decoder.
    dropout: float
    pairs: int  # Of a rank's batch.
    steps: int
    learning_rate: float

    def pairs_per_rank(self, length: int) -> int:
        """Of a batch whose longer sides have up to this many pieces."""
        del length
        return self.pairs


SHAPES = {
    "default": Shapes(8_000, None, 128, 3, 0.0, 64, 90, 6e-3),
    "paper": Shapes(32_000, 32_320, 1024, 4, 0.2, 128, 100, 1e-3),
}


class AdditiveAttention(layers.Layer):
    """Means of the source's states, weighted by how well each goes with a state of the target."""

    def __init__(self, width: int):
        super().__init__()
        self._query = layers.Dense(width, use_bias=False)
        self._key = layers.Dense(width, use_bias=False)
        self._score = layers.Dense(1, use_bias=False)

    def call(self, states, encoded, is_piece):
        sums = self._query(states)[:, :, None] + self._key(encoded)[:, None]
        scores = self._score(keras.ops.tanh(sums))[..., 0]
        scores = keras.ops.where(is_piece[:, None], scores, -1e9)
        return keras.ops.matmul(keras.ops.softmax(scores), encoded)


def make_model(shapes: Shapes, pieces: int) -> keras.Model:
    """Returns a model of (source, target) that scores the piece after each of the target."""
    rows = shapes.rows or pieces
    source = keras.Input((None,), dtype="int32")
    target = keras.Input((None,), dtype="int32")
    # Larger than Keras's: the sizes that LSTMs pass on shrink, and so would those of deep stacks.
    uniform = keras.initializers.RandomUniform(-1.0, 1.0)
    source_table, target_table = (
        tfdear.layers.ShardedEmbedding(rows, shapes.width, uniform, name=name)
        for name in ("source_table", "target_table")
    )
    is_piece = keras.ops.not_equal(source, PADDING)

    def lstm():
        return layers.LSTM(shapes.width, return_sequences=True)

    def drop(x):
        return layers.Dropout(shapes.dropout)(x)

    # The encoder: the first layer reads both ways. Padding comes last, where only a layer that
    # reads backwards would meet it before the sentence; the mask keeps its state until then.
    x = layers.Bidirectional(lstm())(drop(source_table(source)), mask=is_piece)
    x = lstm()(drop(x))
    for _ in range(shapes.depth - 2):
        x = x + lstm()(drop(x))
    encoded = x

    # The decoder: what the first layer attends to is an input of all others, too. It is also added
    # to what is scored: a way through all layers takes far longer to learn where to look.
    x = lstm()(drop(target_table(target)))
    attended = AdditiveAttention(shapes.width)(x, encoded, is_piece)
    for _ in range(shapes.depth - 1):
        x = x + lstm()(layers.Concatenate()([drop(x), attended]))
    scores = layers.Dense(rows, name="classifier")(x + attended)
    return keras.Model((source, target), scores)


if __name__ == "__main__":
    translation.main(__doc__, SHAPES, make_model)
