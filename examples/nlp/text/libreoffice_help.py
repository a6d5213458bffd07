# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""LibreOffice's help in English and German: paragraphs with the same id in the same file."""

from __future__ import annotations

import pathlib

from .html_text import read_paragraphs

ENGLISH_PACKAGE = "libreoffice-help-en-us"
GERMAN_PACKAGE = "libreoffice-help-de"

# What is said on other systems stands beside what is said on this one: "Command", "Ctrl".
_OTHER_SYSTEMS = {"MAC", "WIN"}


def read_pairs(english: pathlib.Path, german: pathlib.Path) -> list[tuple[str, str]]:
    """Returns (English, German) of each paragraph, file after file in the order of their names.

    Args:
        english: folder with the files of the English package.
        german: and of the German one.
    """
    help_folder = pathlib.Path("usr/share/libreoffice/help")
    english, german = english / help_folder / "en-US", german / help_folder / "de"
    pairs = []
    for path in sorted(english.rglob("*.html")):
        other = german / path.relative_to(english)
        if other.is_file():
            pairs += align(path.read_text("utf-8"), other.read_text("utf-8"))
    return pairs


def align(english: str, german: str) -> list[tuple[str, str]]:
    """Returns the pairs of one page."""
    texts = dict(_with_id(german))
    return [(text, texts[id]) for id, text in _with_id(english) if id in texts]


def _with_id(page: str) -> list[tuple[str, str]]:
    return [(id, text) for id, text in read_paragraphs(page, _OTHER_SYSTEMS) if id]
