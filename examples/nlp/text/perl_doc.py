# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Perl's documentation: documents of paragraphs, from Debian's perl-doc."""

from __future__ import annotations

import pathlib
import re

PACKAGE = "perl-doc"

# Headings and items have their text in the line of the command.
_COMMAND_WITH_TEXT = re.compile(r"=(?:head\d|item)\s+(?:[*\d.]+\s*)?(.*)", re.DOTALL)
_BLOCK = re.compile(r"^=begin\b.*?^=end\b[^\n]*\n", re.DOTALL | re.MULTILINE)
# C<text>, C<< text >>: formatting, of which the innermost is taken first.
_FORMATTED = re.compile(r"([A-Z])(?:<<+\s+(.*?)\s+>>+|<([^<>]*)>)", re.DOTALL)
_ESCAPES = {"lt": "\0", "gt": "\1", "verbar": "|", "sol": "/"}


def read_documents(files: pathlib.Path) -> list[list[str]]:
    """Returns the paragraphs of each document, in the order of their names."""
    paths = sorted(files.glob("usr/share/perl/*/pod/*.pod"))
    return [parse_pod(path.read_text("utf-8", "replace")) for path in paths]


def parse_pod(text: str) -> list[str]:
    """Returns the paragraphs of a document, each in one line: no code, no formatting."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", _BLOCK.sub("", text)):
        paragraph = paragraph.strip("\n")
        if paragraph.startswith("="):
            command = _COMMAND_WITH_TEXT.match(paragraph)
            paragraph = command.group(1) if command else ""
        elif paragraph[:1].isspace():
            continue  # Code.
        paragraph = " ".join(_without_formatting(paragraph).split())
        if paragraph:
            paragraphs.append(paragraph)
    return paragraphs


def _without_formatting(text: str) -> str:
    previous = None
    while text != previous:
        previous, text = text, _FORMATTED.sub(_plain, text)
    # Until now these could have been taken for formatting.
    return text.replace("\0", "<").replace("\1", ">")


def _plain(match: re.Match[str]) -> str:
    letter, text = match.group(1), match.group(2) or match.group(3) or ""
    if letter == "E":
        return _ESCAPES.get(text, "")
    if letter in "XZ":
        return ""  # Entries of the index, and nothing at all.
    if letter == "L":
        return text.split("|")[0]
    return text.replace("<", "\0").replace(">", "\1")
