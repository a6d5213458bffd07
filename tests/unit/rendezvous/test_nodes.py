# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which ranks share a node."""

import pytest

from tfdear.rendezvous import nodes


def facts(host, boot="", node=None):
    return {"host": host, "boot": boot, "node": node}


@pytest.mark.parametrize(
    ("facts_of_rank", "node_ranks"),
    [
        ([facts("a", "1"), facts("a", "1"), facts("b", "2")], [0, 0, 1]),
        # Fresh machines of one image have one name.
        ([facts("localhost", "1"), facts("localhost", "2"), facts("localhost", "1")], [0, 1, 0]),
        # Containers of one machine share neither name nor memory.
        ([facts("a", "1"), facts("b", "1")], [0, 1]),
        ([facts("a"), facts("a")], [0, 0]),
        # Whoever starts the job knows better.
        ([facts("a", "1", 1), facts("a", "1", 0)], [1, 0]),
        ([facts("a", "1", 0), facts("b", "2", 0)], [0, 0]),
    ],
)
def test_ranks_of_one_name_on_one_machine_are_a_node(facts_of_rank, node_ranks):
    found = nodes.of_ranks(facts_of_rank)
    assert [node.node_rank for node in found] == node_ranks
    for rank, node in enumerate(found):
        assert node.num_nodes == len(set(node_ranks))
        assert node.local_rank == node_ranks[:rank].count(node_ranks[rank])
        assert node.local_size == node_ranks.count(node_ranks[rank])
