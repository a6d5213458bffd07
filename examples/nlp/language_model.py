# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains an LSTM to guess the next word of a dictionary, with a sampled softmax over its words.

    make text                                               # once
    tfdear run -n 2 examples/nlp/language_model.py          # two minutes on two cores
    tfdear run -n 2 examples/nlp/language_model.py --text fallback --steps 5

Nearly all of its weights are two tables with a row for each word, of which a batch needs few. It
needs tensorflow-text and sentencepiece: `pip install "tfdear[text]"`.
"""

from __future__ import annotations

import dataclasses
import math

import keras
import numpy as np
import recipe
import tensorflow as tf
from text import unigram, words

import tfdear

WINDOW = 20  # Words that the model reads in one go; it knows nothing of those before.
HELD_OUT_WINDOWS = 1000  # To measure with, or up to twice as many.


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Sizes of the model and of its training."""

    words: int
    rows: int | None  # Of the tables, where they are to have more than there are words.
    width: int
    units: int
    samples: int
    windows_per_rank: int
    steps: int
    learning_rate: float


SHAPES = {
    "default": Shapes(50_000, None, 128, 256, 1024, 128, 300, 3e-3),
    "paper": Shapes(793_471, 793_471, 512, 2048, 8192, 128, 100, 1e-3),
}


class LanguageModel(keras.Model):
    """Makes of each word of a window the state from which the next word is guessed."""

    def __init__(self, shapes: Shapes, words: int):
        super().__init__()
        rows = shapes.rows or words
        self.embedding = tfdear.layers.ShardedEmbedding(rows, shapes.width)
        self.lstm = keras.layers.LSTM(shapes.units, return_sequences=True)
        self.projection = keras.layers.Dense(shapes.width)
        # Of the loss: rows that states are compared with, and a bias for each of them.
        self.table = tfdear.layers.ShardedEmbedding(rows, shapes.width)
        self.bias = tfdear.layers.ShardedEmbedding(rows, 1, "zeros")

    def call(self, ids):
        return self.projection(self.lstm(self.embedding(ids)))


def make_windows(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the windows of a text, and the word that follows on each word of them."""
    count = (len(ids) - 1) // WINDOW
    return (
        ids[: count * WINDOW].reshape(count, WINDOW),
        ids[1 : count * WINDOW + 1].reshape(count, WINDOW),
    )


def main() -> None:
    """Trains, and compares the perplexity with that of guessing by frequency."""
    args = recipe.argument_parser(__doc__).parse_args()
    shapes = SHAPES[args.shapes]

    strategy = tfdear.DearStrategy()
    keras.utils.set_random_seed(1)
    text = words.load(args.text).limited_to(shapes.words)
    windows = tf.data.Dataset.from_tensor_slices(make_windows(text.training))
    batch_size = shapes.windows_per_rank * strategy.world_size
    training = windows.shuffle(100_000).repeat().batch(batch_size)
    inputs, labels = make_windows(text.held_out)
    # From all over the dictionary, whose end is not like its beginning.
    every = max(1, len(inputs) // HELD_OUT_WINDOWS)
    inputs, labels = inputs[::every], labels[::every]
    held_out = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(32)

    with strategy.scope():
        model = LanguageModel(shapes, len(text.words))
        model.compile(
            optimizer=keras.optimizers.Adam(shapes.learning_rate, clipnorm=1.0),
            loss=tfdear.losses.SampledSoftmax(model.table, model.bias, samples=shapes.samples),
        )
    steps = args.steps or shapes.steps
    seconds = recipe.train(strategy, model, training, steps, args.curve)
    # Where nothing is trained the loss is that of the whole softmax.
    perplexity = math.exp(model.evaluate(held_out, verbose=0))
    guessed = math.exp(unigram.cross_entropy(text.training, labels.ravel(), len(text.words)))
    recipe.print_summary(
        strategy,
        {
            "words": f"{len(text.words)}, of a text of {len(text.training)}",
            "training": f"{steps} steps of {batch_size * WINDOW} words, {seconds:.0f} s",
            "perplexity, held out": f"{perplexity:.1f}",
            "of the words' frequencies": f"{guessed:.1f} (ratio {perplexity / guessed:.2f})",
        },
    )


if __name__ == "__main__":
    main()
