# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the two translators of this folder share: training, translating, and what is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import keras
import numpy as np
import recipe
import tensorflow as tf
from pair_batches import LONGEST, as_examples, make_batches
from text import translations, unigram
from text.sentence_pieces import BEGIN, END
from text.translations import Translations

import tfdear


class Shapes(Protocol):
    """Sizes that every translator has."""

    pieces: int
    steps: int
    learning_rate: float

    def pairs_per_rank(self, length: int) -> int:
        """Of a batch whose longer sides have up to this many pieces."""


def main(
    description: str,
    all_shapes: Mapping[str, Shapes],
    make_model: Callable[[Shapes, int], keras.Model],
) -> None:
    """Trains, and compares the perplexity with that of guessing by frequency.

    Args:
        description: of the example.
        all_shapes: by the names that `--shapes` takes.
        make_model: of sizes and a number of pieces; (source, target) give the scores of all pieces.
    """
    parser = recipe.argument_parser(description)
    parser.add_argument("--translate", type=int, default=0, help="sentences, to measure BLEU")
    args = parser.parse_args()
    shapes = all_shapes[args.shapes]

    strategy = tfdear.DearStrategy()
    keras.utils.set_random_seed(1)
    text = translations.load(args.text, shapes.pieces)

    def pairs(length: int) -> int:
        return shapes.pairs_per_rank(length) * strategy.world_size

    training = make_batches(text, text.training, pairs, endless=True)
    held_out = make_batches(text, text.held_out, lambda length: 64, endless=False)
    steps = args.steps or shapes.steps
    with strategy.scope():
        model = make_model(shapes, text.pieces.number)
        schedule = keras.optimizers.schedules.CosineDecay(
            0.0, steps, warmup_target=shapes.learning_rate, warmup_steps=min(200, steps // 4)
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(schedule, clipnorm=1.0), loss)
    seconds = recipe.train(strategy, model, training, steps, args.curve)
    rows = {
        "pairs": f"{len(text.training)}, and {len(text.held_out)} held out",
        "training": f"{steps} steps of {pairs(16)} pairs of up to 16 pieces, {seconds:.0f} s",
    }
    results = recipe.measure(strategy, model, held_out, [recipe.token_loss])
    rows |= compare(text, results["token_loss"])
    if args.translate:
        rows |= measure_bleu(strategy, model, text, args.translate)
    recipe.print_summary(strategy, rows)


def translate(
    strategy: tfdear.DearStrategy, model: keras.Model, text: Translations, sentences: list[str]
) -> list[str]:
    """Returns translations, each piece of which is the likeliest after those before it.

    Args:
        strategy: the model's; all ranks call this.
        model: of (source, target) that ends with a layer that scores pieces.
        text: whose pieces are used.
        sentences: the sources.
    """
    classifier = model.layers[-1]
    with strategy.scope():
        last_state = classifier.input[:, -1]
        guess = keras.Model(model.inputs, keras.ops.argmax(classifier(last_state), axis=-1))
    sources = text.pieces.encode(sentences)
    targets = np.full((len(sentences), 1), BEGIN, np.int32)
    # A translation may never end by itself.
    longest = min(LONGEST, 2 * int(tf.reduce_max(sources.row_lengths())) + 8)
    while targets.shape[1] < longest and not (targets == END).any(1).all():
        rows = tf.RaggedTensor.from_tensor(targets)
        batches = as_examples(sources, rows).padded_batch(64)
        pieces = guess.predict(batches.map(lambda source, target: ((source, target),)), verbose=0)
        targets = np.concatenate([targets, pieces[:, None].astype(np.int32)], axis=1)
    return text.pieces.decode(targets)


def compare(text: Translations, loss: float) -> dict[str, str]:
    """Returns the perplexity of held-out pieces, and that of guessing by frequency."""
    # Of the targets, what follows BEGIN, as in the batches.
    trained, measured = (
        text.pieces.encode([target for _, target in pairs])[:, 1:].flat_values.numpy()
        for pairs in (text.training, text.held_out)
    )
    perplexity = math.exp(loss)
    guessed = math.exp(unigram.cross_entropy(trained, measured, text.pieces.number))
    return {
        "perplexity, held out": f"{perplexity:.1f}",
        "of the pieces' frequencies": f"{guessed:.1f} (ratio {perplexity / guessed:.2f})",
    }


def measure_bleu(
    strategy: tfdear.DearStrategy, model: keras.Model, text: Translations, count: int
) -> dict[str, str]:
    """Returns the BLEU of translations of the first held-out sentences, and one of them."""
    import sacrebleu

    sources, references = zip(*text.held_out[:count], strict=True)
    translated = translate(strategy, model, text, list(sources))
    bleu = sacrebleu.metrics.BLEU()
    score = bleu.corpus_score(translated, [list(references)]).score
    return {
        "BLEU": f"{score:.1f}, of {len(sources)} sentences, {bleu.get_signature()}",
        "for example": f"{sources[0]} -> {translated[0]}",
    }
