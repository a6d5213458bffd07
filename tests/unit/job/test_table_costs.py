# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import dataclasses
import json

from tfdear import cost_model
from tfdear.job import table_costs


def test_all_ranks_choose_by_the_costs_of_one_and_the_least_memory():
    costs = [cost_model.ring(2, alpha, 1e-9) for alpha in (1e-4, 2e-4)]
    texts = []

    def agree(text, decide):
        texts.append(text)
        other = {"costs": dataclasses.asdict(costs[1]), "memory": 1000}
        return decide([text, json.dumps(other)])

    choice = table_costs.choice_of_all(costs[0], local_size=2, world_size=2, agree=agree)
    assert choice.ranks == 2
    assert choice.collectives == costs[0]
    assert choice.memory_bytes == 1000
    # This rank has half of the memory that the machine has now.
    assert 1 << 20 < json.loads(texts[0])["memory"] < 1 << 50
