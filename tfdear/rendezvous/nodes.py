# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which ranks share a node. No TensorFlow."""

import collections
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Node:
    """Where one rank runs."""

    node_rank: int
    num_nodes: int
    local_rank: int  # Its number among the ranks of its node, in rank order.
    local_size: int  # The number of ranks on its node.


def numbers(descriptions: Sequence[Mapping[str, Any]]) -> list[int]:
    """The node of every rank: ranks of one host name and boot share one, unless "node" numbers it.

    Ranks told about themselves: "host", "boot" (the id of the machine's last boot, or None) and
    "node" (TFDEAR_NODE_RANK, or None).
    """
    keys = [
        # Several containers or fresh images may have the same host name.
        ("number", own["node"])
        if own.get("node") is not None
        else ("host", own["host"], own.get("boot"))
        for own in descriptions
    ]
    distinct = list(dict.fromkeys(keys))  # In the order of their first ranks.
    if all(kind == "number" for kind, *_ in distinct):
        distinct.sort()
    number_of = {key: number for number, key in enumerate(distinct)}
    return [number_of[key] for key in keys]


def steps(node_ranks: Sequence[int]) -> list[int]:
    """What each number adds to the one before: mostly the same, so it is packed into little."""
    return [now - before for before, now in zip([0, *node_ranks], node_ranks, strict=False)]


def of_steps(steps: Sequence[int]) -> list[Node]:
    """Where every rank runs, from what `steps` gave."""
    return of_numbers(list(itertools.accumulate(steps)))


def of_numbers(node_ranks: Sequence[int]) -> list[Node]:
    """Where every rank runs, from the number of its node."""
    sizes = collections.Counter(node_ranks)
    seen: collections.Counter[int] = collections.Counter()
    nodes = []
    for number in node_ranks:
        nodes.append(Node(number, len(sizes), seen[number], sizes[number]))
        seen[number] += 1
    return nodes
