# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a step's exchanges take, by the times that its ranks measured."""

from tfdear.benchmarks.embeddings import methods

# Two steps: rank 0 waits for rank 1, beside the only server or in a collective.
_RANKS = [{"push": [0.1, 0.1], "pull": [4.0, 4.0]}, {"push": [2.0, 2.0], "pull": [3.0, 3.0]}]


def test_a_collective_takes_as_long_as_on_the_rank_that_came_last():
    assert methods._of_last(_RANKS) == {"push": 0.2, "pull": 6.0}


def test_with_servers_all_exchanges_are_those_of_one_rank():
    assert methods._of_slowest(_RANKS) == {"push": 4.0, "pull": 6.0}
