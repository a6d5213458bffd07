# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What exchanges of tables are chosen by, agreed by all ranks. Imports no TensorFlow."""

import dataclasses
import json
from collections.abc import Callable

from tfdear.base import memory
from tfdear.planning.cost_model import CommunicationCosts, LinearCost
from tfdear.planning.table_choice import TableChoice


def agree(
    costs: CommunicationCosts, local_size: int, exchange: Callable[[str], list[str]]
) -> TableChoice:
    """The choice by rank 0's costs and the memory of the rank that has least; on all ranks.

    Args:
        costs: As this rank measured them.
        local_size: How many ranks share this node's memory.
        exchange: Gives all ranks the texts of all.
    """
    own = {"costs": dataclasses.asdict(costs), "memory": memory.available_bytes() // local_size}
    texts = [json.loads(text) for text in exchange(json.dumps(own))]
    first = {name: LinearCost(**cost) for name, cost in texts[0]["costs"].items()}
    least = min(text["memory"] for text in texts)
    return TableChoice(len(texts), CommunicationCosts(**first), least)
