# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Documents of paragraphs, divided, and the pieces that they are written in."""

from __future__ import annotations

import dataclasses
import pathlib

from . import fallback
from .folder import prepared
from .splits import split
from .word_pieces import WordPieces, frequent_words, learn

Document = list[str]

# The share of documents that no model sees in training.
HELD_OUT_PERCENT = 5.0
# The number of pieces that `make text` asks for.
NUMBER_OF_PIECES = 30_000

_TRAINING = "documents.training.txt"
_HELD_OUT = "documents.held_out.txt"
_PIECES = f"documents.{NUMBER_OF_PIECES}.pieces.txt"
# With fewer there is nothing that comes next.
_FEWEST_PARAGRAPHS = 2


@dataclasses.dataclass(frozen=True)
class Documents:
    """Documents to train on and to measure with, and their pieces."""

    training: list[Document]
    held_out: list[Document]
    pieces: WordPieces


def load(text: str) -> Documents:
    """Returns the `prepared` documents, or the `fallback`."""
    if text == "fallback":
        training, held_out = divide(fallback.read_documents())
        pieces = frequent_words((p for document in training for p in document), 2000)
    else:
        training, held_out = (_read(prepared(name)) for name in (_TRAINING, _HELD_OUT))
        pieces = prepared(_PIECES).read_text("utf-8").split("\n")
    return Documents(training, held_out, WordPieces(pieces))


def divide(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Returns the documents (for training, held out)."""
    long_enough = [d for d in documents if len(d) >= _FEWEST_PARAGRAPHS]
    return split(long_enough, HELD_OUT_PERCENT, key=" ".join)


def save(documents: list[Document], target: pathlib.Path) -> list[str]:
    """Writes what `load` reads, and returns the names of the files that are the same everywhere."""
    training, held_out = divide(documents)
    same = (target / _TRAINING).is_file() and _read(target / _TRAINING) == training
    _write(training, target / _TRAINING)
    _write(held_out, target / _HELD_OUT)
    # This takes minutes: what is there is kept as long as the text is the same.
    if not (same and (target / _PIECES).is_file()):
        pieces = learn([p for document in training for p in document], NUMBER_OF_PIECES)
        (target / _PIECES).write_text("\n".join(pieces), "utf-8")
    return [_TRAINING, _HELD_OUT]


def _read(path: pathlib.Path) -> list[Document]:
    documents = path.read_text("utf-8").removesuffix("\n").split("\n\n")
    return [document.split("\n") for document in documents]


def _write(documents: list[Document], path: pathlib.Path) -> None:
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n", "utf-8")
