# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains BERT to guess hidden pieces of manuals, and whether a paragraph follows on another.

    make text                                               # once
    tfdear run -n 2 examples/nlp/bert_pretraining.py        # two minutes on two cores
    tfdear run -n 2 examples/nlp/bert_pretraining.py --steps 5000

The table of embeddings scores the guesses, too (a tied head). It needs tensorflow-text and
sentencepiece: `pip install "tfdear[text]"`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import keras
import numpy as np
import recipe
import tensorflow as tf
from added_weight import AddedWeight
from blocks import Blocks
from text import documents, unigram
from text.next_paragraphs import RowMaker, Rows
from text.word_pieces import PADDING

import tfdear

layers = keras.layers


@dataclasses.dataclass(frozen=True)
class Shapes:
    """Sizes of the model and of its training."""

    pieces: int | None  # Rows of the table, where it is to have more than there are pieces.
    length: int
    width: int
    inner: int
    heads: int
    blocks: int
    dropout: float
    rows_per_rank: int
    steps: int
    learning_rate: float


SHAPES = {
    "default": Shapes(None, 64, 128, 512, 4, 2, 0.0, 32, 110, 3e-3),
    "paper": Shapes(30_522, 384, 768, 3072, 12, 12, 0.1, 32, 100, 1e-4),
}


def make_model(shapes: Shapes, pieces: int) -> keras.Model:
    """Returns a model of (pieces, parts, places) that scores guesses and what follows."""
    ids = keras.Input((shapes.length,), dtype="int32", name="pieces")
    parts = keras.Input((shapes.length,), dtype="int32", name="parts")
    places = keras.Input((None,), dtype="int32", name="places")
    number = max(pieces, shapes.pieces or 0)
    table = tfdear.layers.ShardedEmbedding(number, shapes.width, name="table", reversible=True)
    # Two rows, which every batch needs, are not worth dividing.
    x = table(ids) + layers.Embedding(2, shapes.width, name="part_table")(parts)
    x = AddedWeight((shapes.length, shapes.width), "uniform", name="positions")(x)
    x = layers.Dropout(shapes.dropout)(layers.LayerNormalization()(x))
    is_piece = keras.ops.expand_dims(keras.ops.not_equal(ids, PADDING), 1)
    blocks = Blocks(shapes.width, shapes.inner, shapes.heads, shapes.dropout, "gelu")
    x = blocks.encoder(x, is_piece, shapes.blocks)

    hidden = keras.ops.take_along_axis(x, keras.ops.expand_dims(places, -1), axis=1)
    hidden = layers.Dense(shapes.width, activation="gelu")(hidden)
    scores = table(layers.LayerNormalization()(hidden), reverse=True)
    guesses = AddedWeight((number,), "zeros", name="guesses")(scores)
    summary = layers.Dense(shapes.width, activation="tanh")(x[:, 0])
    follows = layers.Dense(2, name="follows")(summary)
    return keras.Model(
        {"pieces": ids, "parts": parts, "places": places}, {"guesses": guesses, "follows": follows}
    )


def make_batch(rows: Rows, chosen: slice) -> tuple[dict, dict, dict]:
    """Returns (inputs, labels, weights) for the model."""
    inputs = {"pieces": rows.pieces, "parts": rows.parts, "places": rows.places}
    labels = {"guesses": rows.guessed, "follows": rows.follows}
    is_guessed = (rows.guessed != PADDING).astype("float32")
    weights = {"guesses": is_guessed, "follows": np.ones(len(rows), "float32")}
    return tf.nest.map_structure(lambda column: column[chosen], (inputs, labels, weights))


def endless_batches(maker: RowMaker, size: int) -> Iterator[tuple[dict, dict, dict]]:
    """Yields batches of new rows, again and again of the same documents."""
    for seed in itertools.count(1):
        rows = maker.make(seed)
        for begin in range(0, len(rows) - size + 1, size):
            yield make_batch(rows, slice(begin, begin + size))


def main() -> None:
    """Trains, and compares the loss of guesses with that of guessing by frequency."""
    args = recipe.argument_parser(__doc__).parse_args()
    shapes = SHAPES[args.shapes]

    strategy = tfdear.DearStrategy()
    keras.utils.set_random_seed(1)
    text = documents.load(args.text)
    maker = RowMaker(text.training, text.pieces, shapes.length)
    size = shapes.rows_per_rank * strategy.world_size
    measured = RowMaker(text.held_out, text.pieces, shapes.length).make(seed=0)
    held_out = make_batch(measured, slice(None))
    signature = tf.nest.map_structure(
        lambda column: tf.TensorSpec((None, *column.shape[1:]), column.dtype), held_out
    )
    training = tf.data.Dataset.from_generator(
        lambda: endless_batches(maker, size), output_signature=signature
    )
    held_out = tf.data.Dataset.from_tensor_slices(held_out).batch(64)
    steps = args.steps or shapes.steps
    with strategy.scope():
        model = make_model(shapes, text.pieces.number)
        # Guesses by frequency, as training would learn first.
        bias = model.get_layer("guesses")
        bias.set_weights([unigram.log_frequencies(maker.ids, bias.weights[0].shape[0])])
        schedule = keras.optimizers.schedules.CosineDecay(
            0.0, steps, warmup_target=shapes.learning_rate, warmup_steps=min(100, steps // 4)
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        losses = {"guesses": loss, "follows": loss}
        model.compile(keras.optimizers.Adam(schedule, clipnorm=1.0), losses)
    seconds = recipe.train(strategy, model, training, steps, args.curve)
    metrics = {"guesses": recipe.token_loss, "follows": keras.metrics.SparseCategoricalAccuracy}
    results = recipe.measure(strategy, model, held_out, metrics)
    loss, accuracy = results["guesses_token_loss"], results["follows_sparse_categorical_accuracy"]
    guessed = measured.guessed[measured.guessed != PADDING]
    entropy = unigram.cross_entropy(maker.ids, guessed, text.pieces.number)
    errors = (accuracy - 0.5) / math.sqrt(0.25 / len(measured))
    rows = {
        "pieces": f"{len(maker.ids)} of {text.pieces.number} different ones",
        "training": f"{steps} steps of {size} rows of {shapes.length} pieces, {seconds:.0f} s",
        "loss of guesses, held out": f"{loss:.3f}",
        "of the pieces' frequencies": f"{entropy:.3f} (difference {loss - entropy:+.3f})",
        "accuracy of what follows": f"{accuracy:.2%} of {len(measured)} rows, {errors:.1f} "
        "standard errors above chance",
    }
    recipe.print_summary(strategy, rows)


if __name__ == "__main__":
    main()
