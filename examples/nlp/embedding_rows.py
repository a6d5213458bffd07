# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Counts the rows of embeddings that a step of each example needs, in three ways.

    python examples/nlp/embedding_rows.py           # four ranks with the paper's batches

Original are the rows that a rank's batch looks up, one for each position, padding included;
coalesced are the different ones among them; prior are those of the coalesced that any rank looks up
in the next step: the others' gradients may arrive later. These are the columns of table 3 of the
paper on EmbRace (Li et al., ICPP 2022), whose figures, of other texts, stand beside ours.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator

import bert_pretraining
import gnmt
import language_model
import numpy as np
import tensorflow as tf
import transformer
import translation
from pair_batches import make_batches
from text import documents, translations, words
from text.next_paragraphs import RowMaker

# Megabytes of gradients: original, coalesced, prior.
PAPER = {
    "language model": (8.7, 6.9, 2.6),
    "GNMT": (26.0, 12.2, 5.8),
    "Transformer": (35.2, 16.6, 8.9),
    "BERT": (36.0, 5.5, 3.2),
}


def language_model_batches(text: str, ranks: int) -> Iterator[list[np.ndarray]]:
    """Yields the ids of each table, batch after batch of all ranks."""
    shapes = language_model.SHAPES["paper"]
    corpus = words.load(text).limited_to(shapes.words)
    windows, _ = language_model.make_windows(corpus.training)
    size = shapes.windows_per_rank * ranks
    windows = np.random.default_rng(1).permutation(windows)
    for begin in range(0, len(windows) - size + 1, size):
        yield [windows[begin : begin + size]]


def gnmt_batches(text: str, ranks: int) -> Iterator[list[np.ndarray]]:
    """Yields likewise, for GNMT: source and target."""
    return _translation_batches(text, gnmt.SHAPES["paper"], ranks)


def transformer_batches(text: str, ranks: int) -> Iterator[list[np.ndarray]]:
    """Yields likewise, for the Transformer: source and target."""
    return _translation_batches(text, transformer.SHAPES["paper"], ranks)


def _translation_batches(
    text: str, shapes: translation.Shapes, ranks: int
) -> Iterator[list[np.ndarray]]:
    tf.random.set_seed(1)
    corpus = translations.load(text, shapes.pieces)
    batches = make_batches(
        corpus, corpus.training, lambda length: shapes.pairs_per_rank(length) * ranks, endless=True
    )
    for (source, target), _, _ in batches:
        yield [source.numpy(), target.numpy()]


def bert_batches(text: str, ranks: int) -> Iterator[list[np.ndarray]]:
    """Yields likewise, for BERT."""
    shapes = bert_pretraining.SHAPES["paper"]
    corpus = documents.load(text)
    maker = RowMaker(corpus.training, corpus.pieces, shapes.length)
    for inputs, _, _ in bert_pretraining.endless_batches(maker, shapes.rows_per_rank * ranks):
        yield [inputs["pieces"]]


def count(batches: Iterable[list[np.ndarray]], ranks: int) -> np.ndarray:
    """Returns the mean rows of a rank and step, of all tables: (original, coalesced, prior).

    Args:
        batches: for each step the ids of each table, of which every rank has some rows.
        ranks: their number.
    """
    steps = []
    for batch, following in itertools.pairwise(batches):
        rows = np.zeros(3)
        for ids, next_ids in zip(batch, following, strict=True):
            for share in np.array_split(ids, ranks):
                different = np.unique(share)
                rows += share.size, different.size, np.isin(different, next_ids).sum()
        steps.append(rows / ranks)
    return np.mean(steps, axis=0)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", choices=["prepared", "fallback"], default="prepared")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    sources = {
        "language model": language_model_batches(args.text, args.ranks),
        "GNMT": gnmt_batches(args.text, args.ranks),
        "Transformer": transformer_batches(args.text, args.ranks),
        "BERT": bert_batches(args.text, args.ranks),
    }
    print(f"{'':<16}{'original':>10}{'coalesced':>18}{'prior':>18}    in the paper")
    for name, batches in sources.items():
        original, coalesced, prior = count(itertools.islice(batches, args.steps + 1), args.ranks)
        theirs = PAPER[name]
        print(
            f"{name:<16}{original:>10.0f}{coalesced:>10.0f} ({coalesced / original:4.0%})"
            f"{prior:>10.0f} ({prior / coalesced:4.0%})"
            f"    {theirs[1] / theirs[0]:.0%}, {theirs[2] / theirs[1]:.0%}"
        )


if __name__ == "__main__":
    main()
