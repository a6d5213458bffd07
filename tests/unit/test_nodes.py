# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which ranks share a node."""

import pytest

from tfdear import cluster, coordination, rendezvous


def meeting(rank, facts_of_rank):
    place = cluster.Cluster(rank, len(facts_of_rank), coordinator="127.0.0.1:1")
    return rendezvous.Rendezvous(place, coordination.LocalStore(), facts_of_rank, 10.0)


def facts(host, boot="", node=None):
    return {"host": host, "boot": boot, "node": node}


@pytest.mark.parametrize(
    ("facts_of_rank", "nodes"),
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
def test_ranks_of_one_name_on_one_machine_are_a_node(facts_of_rank, nodes):
    met = meeting(0, facts_of_rank)
    assert met.node_rank_of_rank == nodes
    assert met.num_nodes == len(set(nodes))
    for rank, node in enumerate(nodes):
        assert met.local_rank_of_rank[rank] == nodes[:rank].count(node)
