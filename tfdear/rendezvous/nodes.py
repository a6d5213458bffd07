# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which ranks share a node. No TensorFlow."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Node:
    """Where one rank runs.

    Args:
        node_rank: The number of its node, from 0.
        num_nodes: Of how many.
        local_rank: Its number among the ranks of its node, in rank order.
        local_size: Of how many.
    """

    node_rank: int
    num_nodes: int
    local_rank: int
    local_size: int


def of_ranks(facts_of_rank: Sequence[Mapping[str, Any]]) -> list[Node]:
    """The node of every rank: ranks of one host name and boot share one, unless "node" numbers it.

    Args:
        facts_of_rank: What every rank told about itself: "host", "boot" (the id of the machine's
            last boot, or None) and "node" (TFDEAR_NODE_RANK, or None).
    """
    keys = [
        # Of containers and fresh images, several may have one name.
        ("number", facts["node"])
        if facts.get("node") is not None
        else ("host", facts["host"], facts.get("boot"))
        for facts in facts_of_rank
    ]
    distinct = list(dict.fromkeys(keys))  # In the order of their first ranks.
    if all(kind == "number" for kind, *_ in distinct):
        distinct.sort()
    nodes = []
    for rank, key in enumerate(keys):
        members = [r for r, other in enumerate(keys) if other == key]
        nodes.append(Node(distinct.index(key), len(distinct), members.index(rank), len(members)))
    return nodes
