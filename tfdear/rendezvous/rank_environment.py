# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The environment variables that tell a process its rank; `cluster.discover` reads them."""

from collections.abc import Sequence


def variables(rank: int, node_of_rank: Sequence[int], coordinator: str) -> dict[str, str]:
    """The variables of one rank; `coordinator` is "host:port", the same for every rank."""
    node = node_of_rank[rank]
    local_ranks = [other for other in range(len(node_of_rank)) if node_of_rank[other] == node]
    return {
        "TFDEAR_RANK": str(rank),
        "TFDEAR_WORLD_SIZE": str(len(node_of_rank)),
        "TFDEAR_LOCAL_RANK": str(local_ranks.index(rank)),
        "TFDEAR_LOCAL_SIZE": str(len(local_ranks)),
        "TFDEAR_NODE_RANK": str(node),
        "TFDEAR_COORDINATOR": coordinator,
    }
