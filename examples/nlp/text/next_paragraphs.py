# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Rows for BERT: two parts of a document, or of two, of which some pieces are to be guessed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from .documents import Document
from .word_pieces import CLASS, MASK, PADDING, RESERVED, SEPARATOR, WordPieces

# As in BERT's paper: what is guessed, and what stands there in the meantime.
_GUESSED = 0.15
_MASKED = 0.8
_ANOTHER = 0.1


@dataclasses.dataclass(frozen=True)
class Rows:
    """Arrays with a row for each pair of parts.

    Args:
        pieces: ids, [CLS] first part [SEP] second part [SEP], then padding; some are hidden.
        parts: 1 in the second part, 0 elsewhere.
        places: the positions of pieces that are to be guessed, 0 where a row has no more of them.
        guessed: the ids that belong there, 0 where a row has no more of them.
        follows: 1 where the second part follows on the first, 0 where it is another document's.
    """

    pieces: np.ndarray
    parts: np.ndarray
    places: np.ndarray
    guessed: np.ndarray
    follows: np.ndarray

    def __len__(self) -> int:
        return len(self.pieces)


class RowMaker:
    """Makes rows of documents, other ones with every seed.

    Args:
        documents: of at least two paragraphs each.
        pieces: those they are written in.
        length: number of pieces in a row.
    """

    def __init__(self, documents: Sequence[Document], pieces: WordPieces, length: int):
        ids = pieces.encode([paragraph for document in documents for paragraph in document])
        # All of them, for counting.
        self.ids = ids.flat_values.numpy()
        paragraphs = iter(np.split(self.ids, ids.row_limits()[:-1].numpy()))
        self._documents = [[next(paragraphs) for _ in document] for document in documents]
        self._number = pieces.number
        self._length = length
        self.guesses = max(1, round(length * _GUESSED))

    def make(self, seed: int) -> Rows:
        """Returns the rows of all documents, in any order."""
        random = np.random.default_rng(seed)
        rows = []
        for number, document in enumerate(self._documents):
            rows += [self._row(*pair, random) for pair in self._pairs(number, document, random)]
        random.shuffle(rows)
        columns = zip(*rows, strict=True)
        return Rows(*(np.array(column, np.int32) for column in columns))

    def _pairs(self, number: int, document: list[np.ndarray], random) -> Iterator[tuple]:
        """Yields (first part, second part, whether it follows), each as long as has room."""
        room = self._length - 3
        begin = 0
        while begin < len(document) - 1:
            # The first part has at least one paragraph and about half of the room.
            end, size = begin + 1, len(document[begin])
            half = random.integers(1, room)
            while end < len(document) - 1 and size + len(document[end]) <= half:
                size += len(document[end])
                end += 1
            first = np.concatenate(document[begin:end])[: room - room // 4]
            follows = random.random() < 0.5
            others, start = (document, end) if follows else self._elsewhere(number, random)
            second, stop = others[start], start + 1
            while stop < len(others) and len(first) + len(second) < room:
                second = np.concatenate([second, others[stop]])
                stop += 1
            if len(first) and len(second):
                yield first, second[: room - len(first)], follows
            begin = stop if follows else end

    def _elsewhere(self, number: int, random) -> tuple[list[np.ndarray], int]:
        other = random.integers(len(self._documents) - 1)
        document = self._documents[other + (other >= number)]
        return document, random.integers(len(document))

    def _row(self, first: np.ndarray, second: np.ndarray, follows: bool, random) -> tuple:
        row = np.full(self._length, PADDING, np.int32)
        used = len(first) + len(second) + 3
        row[:used] = np.concatenate([[CLASS], first, [SEPARATOR], second, [SEPARATOR]])
        parts = np.zeros(self._length, np.int32)
        parts[len(first) + 2 : used] = 1
        candidates = np.flatnonzero(row >= len(RESERVED))
        count = min(self.guesses, max(1, round(len(candidates) * _GUESSED)), len(candidates))
        chosen = np.sort(random.choice(candidates, count, replace=False))
        places = np.zeros(self.guesses, np.int32)
        guessed = np.zeros(self.guesses, np.int32)
        places[:count], guessed[:count] = chosen, row[chosen]
        chance = random.random(count)
        others = random.integers(len(RESERVED), self._number, count)
        kept_or_other = np.where(chance < _MASKED + _ANOTHER, others, row[chosen])
        row[chosen] = np.where(chance < _MASKED, MASK, kept_or_other)
        return row, parts, places, guessed, int(follows)
