# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Pieces of words, learnt with SentencePiece's byte-pair encoding, in both languages at once."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import tensorflow as tf
import tensorflow_text

PADDING, UNKNOWN, BEGIN, END = range(4)


def learn(lines: Iterable[str], number: int) -> bytes:
    """Returns SentencePiece's model of this many pieces, or fewer if the lines have no more."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=number,
        hard_vocab_limit=False,
        character_coverage=1.0,
        pad_id=PADDING,
        unk_id=UNKNOWN,
        bos_id=BEGIN,
        eos_id=END,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


class SentencePieces:
    """Ids of the pieces of sentences, and back.

    Set the seed of random numbers before: that makes TensorFlow forget the kernels that it has
    made, and the tokenizer's is what owns its model.

    Args:
        model: what `learn` returned.
    """

    def __init__(self, model: bytes):
        self._tokenizer = tensorflow_text.SentencepieceTokenizer(
            model, out_type=tf.int32, add_bos=True, add_eos=True
        )

    @property
    def number(self) -> int:
        """How many pieces there are."""
        return int(self._tokenizer.vocab_size())

    def encode(self, sentences: Sequence[str]) -> tf.RaggedTensor:
        """Returns BEGIN, the ids of the pieces, and END of each sentence."""
        return self._tokenizer.tokenize(tf.constant(sentences, tf.string))

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Returns the sentences of these ids, of which each ends before its first END."""
        rows = []
        for row in ids:
            row = [int(id) for id in row]
            row = row[: row.index(END)] if END in row else row
            rows.append([id for id in row if id not in (PADDING, BEGIN)])
        decoded = self._tokenizer.detokenize(tf.ragged.constant(rows, tf.int32, ragged_rank=1))
        return [sentence.decode("utf-8", "replace") for sentence in decoded.numpy()]
