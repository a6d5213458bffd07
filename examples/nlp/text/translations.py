# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Sentences in English and German, divided, and the pieces that both are written in."""

from __future__ import annotations

import dataclasses
import pathlib

from . import fallback
from .folder import folder, prepared
from .pairs import usable
from .sentence_pieces import SentencePieces, learn
from .splits import split

Pairs = list[tuple[str, str]]

# The share of sources that no model sees in training.
HELD_OUT_PERCENT = 4.0
# The numbers of pieces that `make text` learns.
NUMBERS_OF_PIECES = (8_000, 32_000)

_TRAINING = "translations.training.tsv"
_HELD_OUT = "translations.held_out.tsv"
# Whatever catalogs this machine has: a file of its own, so that the others are the same everywhere.
_CATALOGS = "catalogs.training.tsv"


@dataclasses.dataclass(frozen=True)
class Translations:
    """Pairs (source, target) to train on and to measure with, and their pieces."""

    training: Pairs
    held_out: Pairs
    pieces: SentencePieces


def load(text: str, number_of_pieces: int) -> Translations:
    """Returns the `prepared` pairs or the `fallback`, with pieces of this number."""
    if text == "fallback":
        training, held_out = divide(fallback.read_pairs())
        model = learn((side for pair in training for side in pair), min(number_of_pieces, 2000))
    else:
        training, held_out = (_read(prepared(name)) for name in (_TRAINING, _HELD_OUT))
        if (folder() / _CATALOGS).is_file():
            training += _read(folder() / _CATALOGS)
        model = prepared(_model_name(number_of_pieces)).read_bytes()
    return Translations(training, held_out, SentencePieces(model))


def divide(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """Returns the usable pairs (for training, held out); a source is on one side only."""
    return split(usable(pairs), HELD_OUT_PERCENT, key=lambda pair: pair[0])


def save(pairs: Pairs, catalogs: Pairs, target: pathlib.Path) -> list[str]:
    """Writes what `load` reads, and returns the names of the files that are the same everywhere.

    Args:
        pairs: of the packages' help.
        catalogs: of the programs that are installed here.
        target: the folder.
    """
    training, held_out = divide(pairs)
    _write(training, target / _TRAINING)
    _write(held_out, target / _HELD_OUT)
    _write(divide(catalogs)[0], target / _CATALOGS)
    for number in NUMBERS_OF_PIECES:
        model = learn((side for pair in training for side in pair), number)
        (target / _model_name(number)).write_bytes(model)
    return [_TRAINING, _HELD_OUT]


def _model_name(number: int) -> str:
    return f"translations.{number}.pieces"


def _read(path: pathlib.Path) -> Pairs:
    rows = path.read_text("utf-8").removesuffix("\n").split("\n")
    return [(source, target) for source, target in (row.split("\t") for row in rows)]


def _write(pairs: Pairs, path: pathlib.Path) -> None:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), "utf-8")
