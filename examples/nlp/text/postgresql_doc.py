# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""PostgreSQL's documentation: documents of paragraphs, from Debian's postgresql-doc-15."""

from __future__ import annotations

import pathlib

from .html_text import read_paragraphs

PACKAGE = "postgresql-doc-15"

# Examples of code; of an index only numbers.
_SILENT_TAGS = {"pre", "table"}
_SILENT_CLASSES = {"indexterm"}


def read_documents(files: pathlib.Path) -> list[list[str]]:
    """Returns the paragraphs of each page, in the order of their names."""
    pages = sorted(files.glob("usr/share/doc/postgresql-doc-15/html/*.html"))
    return [parse_page(page.read_text("utf-8", "replace")) for page in pages]


def parse_page(page: str) -> list[str]:
    """Returns the headings and paragraphs of a page, each in one line."""
    paragraphs = read_paragraphs(page, _SILENT_CLASSES, _SILENT_TAGS)
    return [text for _, text in paragraphs if text]
