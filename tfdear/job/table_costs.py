# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What exchanges of tables are chosen by, agreed by all ranks. Imports no TensorFlow."""

import dataclasses
import json
from collections.abc import Callable

from tfdear.base import memory
from tfdear.planning.cost_model import CommunicationCosts, LinearCost
from tfdear.planning.table_choice import TableChoice


def choice_of_all(
    costs: CommunicationCosts,
    local_size: int,
    world_size: int,
    agree: Callable[[str, Callable[[list[str]], str]], str],
) -> TableChoice:
    """The choice by rank 0's costs and the memory of the rank that has least; on all ranks.

    Args:
        costs: As this rank measured them.
        local_size: How many ranks share this node's memory.
        world_size: How many ranks there are.
        agree: Tells all ranks what rank 0 decides by the texts of all.
    """
    own = {"costs": dataclasses.asdict(costs), "memory": memory.available_bytes() // local_size}
    agreed = json.loads(agree(json.dumps(own), _first_costs_and_least_memory))
    first = {name: LinearCost(**cost) for name, cost in agreed["costs"].items()}
    return TableChoice(world_size, CommunicationCosts(**first), agreed["memory"])


def _first_costs_and_least_memory(texts: list[str]) -> str:
    ranks = [json.loads(text) for text in texts]
    least = min(rank["memory"] for rank in ranks)
    return json.dumps({"costs": ranks[0]["costs"], "memory": least})
