# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains a Transformer to translate English into German, with batches by number of pieces.

    make text                                               # once
    tfdear run -n 2 examples/nlp/transformer.py             # two minutes on two cores
    tfdear run -n 2 examples/nlp/transformer.py --steps 5000 --translate 256

Batches of long sentences have few rows: every batch has about the same work. It needs
tensorflow-text, sentencepiece and, to translate, sacrebleu: `pip install "tfdear[text]"`.
"""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import translation
from blocks import Blocks
from pair_batches import LONGEST
from text.sentence_pieces import PADDING

import tfdear

layers = keras.layers


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Sizes of the model and of its training."""

    pieces: int
    rows: int | None  # Of the tables, where they are to have more than there are pieces.
    width: int
    inner: int
    heads: int
    blocks: int
    dropout: float
    pieces_per_rank: int
    steps: int
    learning_rate: float

    def pairs_per_rank(self, length: int) -> int:
        """Of a batch whose longer sides have up to this many pieces."""
        return self.pieces_per_rank // length


SHAPES = {
    "default": Shapes(8_000, None, 128, 512, 4, 2, 0.0, 1024, 180, 2e-3),
    "paper": Shapes(32_000, 33_712, 1024, 4096, 16, 6, 0.1, 5120, 100, 5e-4),
}


class Positions(layers.Layer):
    """Adds to the rows of a table where in the sentence each of them stands."""

    def __init__(self, width: int):
        super().__init__()
        rates = 1e-4 ** (np.arange(0, width, 2) / width)
        angles = np.arange(LONGEST + 1)[:, None] * rates
        self._scale = width**0.5
        self._signal = np.concatenate([np.sin(angles), np.cos(angles)], 1).astype("float32")

    def call(self, rows):
        signal = keras.ops.convert_to_tensor(self._signal)
        return rows * self._scale + signal[: keras.ops.shape(rows)[1]]


def make_model(shapes: Shapes, pieces: int) -> keras.Model:
    """Returns a model of (source, target) that scores the piece after each of the target."""
    rows = shapes.rows or pieces
    source = keras.Input((None,), dtype="int32")
    target = keras.Input((None,), dtype="int32")
    source_table = tfdear.layers.ShardedEmbedding(rows, shapes.width, name="source_table")
    target_table = tfdear.layers.ShardedEmbedding(rows, shapes.width, name="target_table")
    # What attention may look at: for each piece of the one side, the pieces of the source.
    is_piece = keras.ops.expand_dims(keras.ops.not_equal(source, PADDING), 1)

    blocks = Blocks(shapes.width, shapes.inner, shapes.heads, shapes.dropout)

    def place(rows):
        return layers.Dropout(shapes.dropout)(Positions(shapes.width)(rows))

    encoded = blocks.encoder(place(source_table(source)), is_piece, shapes.blocks)
    states = blocks.decoder(place(target_table(target)), encoded, is_piece, shapes.blocks)
    scores = layers.Dense(rows, use_bias=False, name="classifier")(states)
    return keras.Model((source, target), scores)


if __name__ == "__main__":
    translation.main(__doc__, SHAPES, make_model)
