# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""GNOME's help in English and German: pages whose translation has the same elements."""

from __future__ import annotations

import pathlib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

PACKAGE = "gnome-user-docs"

_MALLARD = "{http://projectmallard.org/1.0/}"
_PARAGRAPHS = {_MALLARD + name for name in ("p", "title", "desc")}
# What authors tell each other is not translated.
_COMMENT = _MALLARD + "comment"


def read_pairs(files: pathlib.Path) -> list[tuple[str, str]]:
    """Returns (English, German) of each paragraph, page after page in the order of their names."""
    english, german = files / "usr/share/help/C", files / "usr/share/help/de"
    pairs = []
    for path in sorted(english.rglob("*.page")):
        other = german / path.relative_to(english)
        if other.is_file():
            pairs += align(path.read_text("utf-8"), other.read_text("utf-8"))
    return pairs


def align(english: str, german: str) -> list[tuple[str, str]]:
    """Returns the pairs of one page: none where a paragraph has no partner."""
    sources, targets = _paragraphs(english), _paragraphs(german)
    if [tag for tag, _ in sources] != [tag for tag, _ in targets]:
        return []
    return [(source, target) for (_, source), (_, target) in zip(sources, targets, strict=True)]


def _paragraphs(page: str) -> list[tuple[str, str]]:
    return [
        (element.tag, " ".join("".join(element.itertext()).split()))
        for element in _without_comments(ElementTree.fromstring(page))
        if element.tag in _PARAGRAPHS
    ]


def _without_comments(element: ElementTree.Element) -> Iterator[ElementTree.Element]:
    if element.tag != _COMMENT:
        yield element
        for child in element:
            yield from _without_comments(child)
