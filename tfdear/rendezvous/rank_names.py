# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How messages name ranks."""

from collections.abc import Iterable, Mapping
from typing import Any


def describe(rank: int, description: Mapping[str, Any]) -> str:
    """ "rank 2 (host h, pid 123)", by what it told about itself."""
    return f"rank {rank} (host {description['host']}, pid {description['pid']})"


def numbers(ranks: Iterable[int]) -> str:
    """ "0, 2, 5-9" for ranks in any order; "none" when there are none."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = [f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in spans]
    return ", ".join(texts) or "none"


def came(ranks_that_came: Iterable[int], world_size: int) -> str:
    """ "Ranks that came: 0, 2; missing: 1, 3."."""
    some = set(ranks_that_came)
    missing = set(range(world_size)) - some
    return f"Ranks that came: {numbers(some)}; missing: {numbers(missing)}."


def ranks(listed: Iterable[int]) -> str:
    """ "rank 2" or "ranks 0, 2, 5-9"."""
    some = list(listed)
    return f"rank{'s' if len(some) > 1 else ''} {numbers(some)}"
