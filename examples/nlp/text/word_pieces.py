# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Pieces of words, as BERT has them: a word is known, or made of the longest pieces that are."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence

import tensorflow as tf
import tensorflow_text

RESERVED = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PADDING, UNKNOWN, CLASS, SEPARATOR, MASK = range(len(RESERVED))


def learn(paragraphs: Sequence[str], number: int) -> list[str]:
    """Returns at most this many pieces, by tensorflow-text's learner, in minutes."""
    from tensorflow_text.tools.wordpiece_vocab import bert_vocab_from_dataset

    pieces = bert_vocab_from_dataset.bert_vocab_from_dataset(
        tf.data.Dataset.from_tensor_slices(list(paragraphs)).batch(1000),
        vocab_size=number,
        reserved_tokens=RESERVED,
        bert_tokenizer_params={"lower_case": True},
        # Pieces may be as rare as this; with the default, 10, these texts give 10,000 pieces.
        learn_params={"lower_thresh": 2, "num_iterations": 8},
    )
    # The learner keeps to the number roughly. The last ones are the rarest.
    return pieces[:number]


def frequent_words(paragraphs: Iterable[str], number: int) -> list[str]:
    """Returns the characters of a text, alone and within words, and its frequent words: at once."""
    text = " ".join(paragraphs).lower()
    characters = sorted(set(text) - {" "})
    within = ["##" + character for character in characters]
    words = collections.Counter(re.findall(r"[^\W_]{2,}", text))
    pieces = RESERVED + characters + within
    by_frequency = sorted(words, key=lambda word: (-words[word], word))
    return pieces + by_frequency[: max(0, number - len(pieces))]


class WordPieces:
    """Ids of the pieces of paragraphs.

    Args:
        pieces: what `learn` or `frequent_words` returned.
    """

    def __init__(self, pieces: Sequence[str]):
        self.number = len(pieces)
        self._tokenizer = tensorflow_text.FastBertTokenizer(
            list(pieces), token_out_type=tf.int32, lower_case_nfd_strip_accents=True
        )

    def encode(self, paragraphs: Sequence[str]) -> tf.RaggedTensor:
        """Returns the ids of each paragraph."""
        return self._tokenizer.tokenize(tf.constant(paragraphs, tf.string))
