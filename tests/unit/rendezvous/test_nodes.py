# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which ranks share a node."""

import pytest

from tfdear.rendezvous import nodes


def description(host, boot="", node=None):
    return {"host": host, "boot": boot, "node": node}


@pytest.mark.parametrize(
    ("descriptions", "node_ranks"),
    [
        ([description("a", "1"), description("a", "1"), description("b", "2")], [0, 0, 1]),
        # Fresh machines of one image have one name.
        ([description("localhost", boot) for boot in ("1", "2", "1")], [0, 1, 0]),
        # Containers of one machine share neither name nor memory.
        ([description("a", "1"), description("b", "1")], [0, 1]),
        ([description("a"), description("a")], [0, 0]),
        # Whoever starts the job knows better.
        ([description("a", "1", 1), description("a", "1", 0)], [1, 0]),
        ([description("a", "1", 0), description("b", "2", 0)], [0, 0]),
    ],
)
def test_ranks_of_one_name_on_one_machine_are_a_node(descriptions, node_ranks):
    assert nodes.numbers(descriptions) == node_ranks
    found = nodes.of_steps(nodes.steps(node_ranks))
    assert [node.node_rank for node in found] == node_ranks
    for rank, node in enumerate(found):
        assert node.num_nodes == len(set(node_ranks))
        assert node.local_rank == node_ranks[:rank].count(node_ranks[rank])
        assert node.local_size == node_ranks.count(node_ranks[rank])
