# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The paragraphs of a page of HTML, each with the id of its element."""

from __future__ import annotations

import html.parser
from collections.abc import Collection

_PARAGRAPHS = {"p", "h1", "h2", "h3", "h4", "h5", "h6"}
# They have no end, so that nothing is inside of them.
_VOID = {"br", "col", "hr", "img", "input", "link", "meta", "wbr"}


class _Reader(html.parser.HTMLParser):
    def __init__(self, silent_classes: Collection[str], silent_tags: Collection[str]):
        super().__init__()
        self.paragraphs: list[tuple[str, str]] = []
        self._silent_classes = silent_classes
        self._silent_tags = silent_tags
        self._id: str | None = None
        self._words: list[str] = []
        # Elements that are open in the paragraph, and whether each is left out.
        self._open: list[tuple[str, bool]] = []

    def handle_starttag(self, tag, attributes):
        if tag in _PARAGRAPHS:
            self._finish()
            self._id = dict(attributes).get("id") or ""
        elif tag in _VOID:
            self._words.append(" ")
        elif self._id is not None:
            classes = (dict(attributes).get("class") or "").split()
            silent = tag in self._silent_tags or not self._silent_classes.isdisjoint(classes)
            self._open.append((tag, silent))

    def handle_endtag(self, tag):
        if tag in _PARAGRAPHS:
            self._finish()
        elif any(tag == opened for opened, _ in self._open):
            while self._open.pop()[0] != tag:
                pass  # Elements whose ends the page leaves out.

    def handle_data(self, data):
        if self._id is not None and not any(silent for _, silent in self._open):
            self._words.append(data)

    def close(self):
        super().close()
        self._finish()

    def _finish(self) -> None:
        if self._id is not None:
            self.paragraphs.append((self._id, " ".join("".join(self._words).split())))
        self._id, self._words, self._open = None, [], []


def read_paragraphs(
    page: str,
    silent_classes: Collection[str] = frozenset(),
    silent_tags: Collection[str] = frozenset(),
) -> list[tuple[str, str]]:
    """Returns (id or "", text) of each paragraph and heading, in their order.

    Args:
        page: HTML.
        silent_classes: the text of elements with one of these classes is left out.
        silent_tags: and that of these elements.
    """
    reader = _Reader(frozenset(silent_classes), frozenset(silent_tags))
    reader.feed(page)
    reader.close()
    return reader.paragraphs
