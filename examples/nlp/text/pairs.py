# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which pairs of paragraphs a translator can learn from."""

from __future__ import annotations

from collections.abc import Iterable

_FEWEST_WORDS = 4
_MOST_WORDS = 50


def usable(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the pairs of 4 to 50 words that are translated, each once."""
    return list(dict.fromkeys(filter(_is_usable, pairs)))


def _is_usable(pair: tuple[str, str]) -> bool:
    source, target = pair
    lengths = len(source.split()), len(target.split())
    return source != target and all(_FEWEST_WORDS <= n <= _MOST_WORDS for n in lengths)
