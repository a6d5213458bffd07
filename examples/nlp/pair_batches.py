# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Batches of sentences and their translations, of about the same length."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from text.sentence_pieces import PADDING
from text.translations import Pairs, Translations

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
    examples = as_examples(*sides)
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


def as_examples(sources: tf.RaggedTensor, targets: tf.RaggedTensor) -> tf.data.Dataset:
    """Returns (source, target) of each row, without padding."""
    # The rows come as ragged tensors without a ragged dimension, which cannot be padded.
    return tf.data.Dataset.from_tensor_slices((sources, targets)).map(lambda *rows: rows)


def _shift(source, target):
    following = target[:, 1:]
    weights = tf.cast(following != PADDING, tf.float32)
    return (source, target[:, :-1]), following, weights
