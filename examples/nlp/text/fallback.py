# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Texts that every Python has: the help of `pydoc_data.topics`, half a megabyte, for tests.

There is no translation of it. The task in its place is to restore what was taken from a sentence,
capitals and punctuation, so that source and target are as close as in a real, easy translation.
"""

from __future__ import annotations

import importlib
import re

_FEWEST_WORDS = 4
_MOST_WORDS = 50


def read_documents() -> list[list[str]]:
    """Returns the paragraphs of each topic, in the order of their names."""
    topics = importlib.import_module("pydoc_data.topics").topics
    documents = []
    for _, text in sorted(topics.items()):
        paragraphs = (" ".join(p.split()) for p in re.split(r"\n\s*\n", text))
        documents.append([p for p in paragraphs if re.search(r"\w", p)])
    return documents


def read_pairs() -> list[tuple[str, str]]:
    """Returns (words of a sentence, the sentence), each once."""
    text = " ".join(paragraph for document in read_documents() for paragraph in document)
    sentences = dict.fromkeys(re.split(r"(?<=[.:;?!]) +", text))
    pairs = ((" ".join(re.findall(r"\w+", s.lower())), s) for s in sentences)
    return [p for p in pairs if _FEWEST_WORDS <= len(p[0].split()) <= _MOST_WORDS]
