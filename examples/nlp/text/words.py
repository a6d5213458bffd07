# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A text as language models see it: whole words with an id each, the frequent ones first."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import re
from collections.abc import Iterable

import numpy as np

from . import fallback
from .folder import prepared
from .splits import split

UNKNOWN = "<unknown>"
END = "<end>"
# The share of entries that no model sees in training.
HELD_OUT_PERCENT = 2.0

_TOKEN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|\d+|[^\w\s]")


@dataclasses.dataclass(frozen=True)
class WordText:
    """Words and the ids of two parts of a text, in its order.

    Args:
        words: the word of each id, by falling frequency in `training`; 0 is any other word.
        training: ids, one entry after the other, with an END after each.
        held_out: likewise, of the entries that are not trained on.
    """

    words: list[str]
    training: np.ndarray
    held_out: np.ndarray

    def limited_to(self, number: int) -> WordText:
        """The same text with fewer words: the most frequent ones."""
        words = self.words[:number]
        parts = (np.where(part < len(words), part, 0) for part in (self.training, self.held_out))
        return WordText(words, *parts)


def tokenize(entry: str) -> list[str]:
    """Returns the words, numbers and marks of an entry, in lower case."""
    return _TOKEN.findall(entry.lower())


def make(entries: Iterable[str]) -> WordText:
    """Returns the text of these entries, divided."""
    parts = [[tokenize(e) + [END] for e in part] for part in split(entries, HELD_OUT_PERCENT)]
    counts = collections.Counter(word for entry in parts[0] for word in entry)
    words = [UNKNOWN, *sorted(counts, key=lambda word: (-counts[word], word))]
    ids = {word: id for id, word in enumerate(words)}
    training, held_out = (
        np.fromiter((ids.get(word, 0) for entry in part for word in entry), np.int32)
        for part in parts
    )
    return WordText(words, training, held_out)


def load(text: str) -> WordText:
    """Returns the `prepared` dictionary, or the `fallback`."""
    if text == "fallback":
        return make(paragraph for document in fallback.read_documents() for paragraph in document)
    words = prepared("gcide.words.txt").read_text("utf-8").split("\n")
    return WordText(
        words, np.load(prepared("gcide.training.npy")), np.load(prepared("gcide.held_out.npy"))
    )


def save(text: WordText, folder: pathlib.Path) -> list[str]:
    """Writes what `load` reads, and returns the names of the files."""
    (folder / "gcide.words.txt").write_text("\n".join(text.words), "utf-8")
    np.save(folder / "gcide.training.npy", text.training)
    np.save(folder / "gcide.held_out.npy", text.held_out)
    return ["gcide.words.txt", "gcide.training.npy", "gcide.held_out.npy"]
