# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What is held out of training: decided by a checksum of the text itself.

The same text is on the same side everywhere: on every machine, from whichever package it comes,
and whatever comes before or after it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def is_held_out(text: str, percent: float) -> bool:
    """Whether a text is among the given share of all texts."""
    return zlib.crc32(text.encode()) % 10_000 < 100 * percent


def split(
    items: Iterable[Item], percent: float, key: Callable[[Item], str] = str
) -> tuple[list[Item], list[Item]]:
    """Returns (for training, held out)."""
    training: list[Item] = []
    held_out: list[Item] = []
    for item in items:
        (held_out if is_held_out(key(item), percent) else training).append(item)
    return training, held_out
