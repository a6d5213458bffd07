# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The Collaborative International Dictionary of English, as Debian's dict-gcide has it."""

from __future__ import annotations

import gzip
import pathlib
import re

PACKAGE = "dict-gcide"

# "[1913 Webster]", "[WordNet 1.5 +PJC]": where a definition comes from, and who edited it. They
# are one word in forty, so that a model would be praised for guessing them.
_SOURCE = re.compile(r"\[[^][]*\b(?:Webster|WordNet|PJC|AS|RDH|RP)\b[^][]*\]")
# A headword begins a line and is repeated with its pronunciation.
_ENTRY = re.compile(r"\n\n(?=\S[^\n]*\\)")


def read_entries(files: pathlib.Path) -> list[str]:
    """Returns the text of each entry, without the files' preface."""
    # The .dz is an ordinary gzip file that can also be read in the middle.
    with gzip.open(files / "usr/share/dictd/gcide.dict.dz") as file:
        text = file.read().decode("utf-8", "replace")
    return parse_entries(text)


def parse_entries(text: str) -> list[str]:
    """Returns the text of each entry of a dictionary, in one line."""
    _, *entries = _ENTRY.split("\n\n" + text)
    return [" ".join(_SOURCE.sub(" ", entry).split()) for entry in entries]
