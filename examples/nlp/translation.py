# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the two translators of this folder share: batches, translating, and what is printed."""

from __future__ import annotations

import math
from collections.abc import Callable

import keras
import numpy as np
import recipe
import tensorflow as tf
from text import unigram
from text.sentence_pieces import BEGIN, END, PADDING
from text.translations import Pairs, Translations

import tfdear

# Pairs with a longer side, in pieces, are left out.
LONGEST = 100
# Sentences of about the same length share a batch: up to each of these.
_LENGTHS = [8, 12, 16, 24, 32, 48, 64, LONGEST]


def make_batches(
    text: Translations, pairs: Pairs, size: Callable[[int], int], endless: bool
) -> tf.data.Dataset:
    """Returns batches of ((source, target), next pieces of the target, 1 where there is one).

    Args:
        text: whose pieces are used.
        pairs: those to make batches of.
        size: the number of pairs in a batch of all ranks whose longest side has this many pieces.
        endless: shuffled and repeated, for training.
    """
    sides = [text.pieces.encode(sentences) for sentences in zip(*pairs, strict=True)]
    longest = tf.maximum(*(side.row_lengths() for side in sides))
    sides = [tf.ragged.boolean_mask(side, longest <= LONGEST) for side in sides]
    examples = _examples(*sides)
    if endless:
        examples = examples.shuffle(100_000).repeat()
    batches = examples.bucket_by_sequence_length(
        element_length_func=lambda source, target: tf.maximum(tf.size(source), tf.size(target)),
        bucket_boundaries=[length + 1 for length in _LENGTHS],
        bucket_batch_sizes=[size(length) for length in [*_LENGTHS, LONGEST]],
        padding_values=PADDING,
    )
    batches = batches.map(_shift)
    if not endless:
        # Keras warns at the end of what it does not know the length of.
        count = sum(1 for _ in batches)
        batches = batches.apply(tf.data.experimental.assert_cardinality(count))
    return batches


def _examples(sources: tf.RaggedTensor, targets: tf.RaggedTensor) -> tf.data.Dataset:
    # The rows come as ragged tensors without a ragged dimension, which cannot be padded.
    return tf.data.Dataset.from_tensor_slices((sources, targets)).map(lambda *rows: rows)


def _shift(source, target):
    following = target[:, 1:]
    weights = tf.cast(following != PADDING, tf.float32)
    return (source, target[:, :-1]), following, weights


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
        batches = _examples(sources, rows).padded_batch(64)
        pieces = guess.predict(batches.map(lambda source, target: ((source, target),)), verbose=0)
        targets = np.concatenate([targets, pieces[:, None].astype(np.int32)], axis=1)
    return text.pieces.decode(targets)


def measure(
    strategy: tfdear.DearStrategy, model: keras.Model, text: Translations, translated: int
) -> dict[str, str]:
    """Returns what is printed of a trained model.

    Args:
        strategy: the model's.
        model: of (source, target), with the scores of all pieces.
        text: what it was trained on.
        translated: number of held-out sentences to translate for BLEU; 0 for none.
    """
    held_out = make_batches(text, text.held_out, lambda length: 64, endless=False)
    perplexity = math.exp(recipe.mean_loss(strategy, model, held_out))
    # Of the targets, what follows BEGIN, as in the batches.
    trained, measured = (
        text.pieces.encode([target for _, target in pairs])[:, 1:].flat_values.numpy()
        for pairs in (text.training, text.held_out)
    )
    guessed = math.exp(unigram.cross_entropy(trained, measured, text.pieces.number))
    rows = {
        "pairs": f"{len(text.training)}, and {len(text.held_out)} held out",
        "perplexity, held out": f"{perplexity:.1f}",
        "of the pieces' frequencies": f"{guessed:.1f} (ratio {perplexity / guessed:.2f})",
    }
    if translated:
        import sacrebleu

        sources, references = zip(*text.held_out[:translated], strict=True)
        translations = translate(strategy, model, text, list(sources))
        bleu = sacrebleu.metrics.BLEU()
        score = bleu.corpus_score(translations, [list(references)]).score
        rows["BLEU"] = f"{score:.1f}, of {len(sources)} sentences, {bleu.get_signature()}"
        rows["for example"] = f"{sources[0]} -> {translations[0]}"
    return rows
