# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Vectors are pooled by the ranks that hold them where fewer bytes travel, and no bit tells."""

import json
import pathlib

import pytest
from ranks import run_ranks

from tfdear.planning.embedding_costs import TableTraffic
from tfdear.planning.partition import Partition
from tfdear.planning.table import Table

_JOB = pathlib.Path(__file__).parent / "jobs" / "pooled_vectors_job.py"
_WORDS = 12
_BYTES = {"float32": 4, "mixed_bfloat16": 2, "mixed_float16": 2}
_POLICIES = tuple(_BYTES)
_KINDS, _COMBINERS = ("dense", "ragged", "sparse"), ("sum", "mean", "sqrtn")


def _expected(kind, value_bytes, mask_zero, bags_of_ranks, widths, rank):
    """What a rank sends of ids and vectors in a step, and whether sums of bags travel."""
    ids, bags, tokens = [], [], []
    for of_rank in bags_of_ranks:
        padded = [bag + [0] * (_WORDS - len(bag)) * (kind == "dense") for bag in of_rank]
        flat = [word for bag in padded for word in bag]
        ids.append(len(set(flat)))
        bags.append(len(padded))
        tokens.append(sum(word != 0 or not mask_zero for word in flat))

    def all_vectors(counts):
        pairs = zip(counts, widths, strict=True)
        return sum(value_bytes * count * (sum(widths) - width) for count, width in pairs)

    others = len(widths) - 1
    structure = 4 * others * (sum(bags) + sum(tokens))
    pooled = structure + all_vectors(bags) < all_vectors(ids)
    counts = bags if pooled else ids
    sent_ids = 4 * others * (ids[rank] + pooled * (bags[rank] + tokens[rank]))
    return sent_ids, value_bytes * widths[rank] * (sum(counts) - counts[rank]), pooled


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("world_size", "schedule"),
    [
        (2, "2d"),
        *(pytest.param(3, schedule, marks=pytest.mark.long) for schedule in ("2d", "none")),
    ],
)
def test_bits_are_those_of_single_vectors_and_bytes_those_of_bags(world_size, schedule, tmp_path):
    environment = {"TFDEAR_EMBEDDING_SCHEDULE": schedule, "TFDEAR_MAX_DELAY_MS": "2"}
    for code, output in run_ranks(
        world_size, _JOB, environment, timeout=350, arguments=(str(tmp_path),)
    ):
        assert code == 0, output[-5000:]
    reports = [
        json.loads((tmp_path / f"rank_{rank}.json").read_text()) for rank in range(world_size)
    ]
    training = [report["training"] for report in reports]
    steps = list(zip(*(of_rank["bags"] for of_rank in training), strict=True))
    assert len(steps) == 5
    assert sum(map(len, steps[-1])) == 1  # The other ranks have no examples.
    for rank, of_rank in enumerate(training):
        # All tables of a step are in one, whether their vectors may be pooled or not.
        of_single, of_pooled = of_rank["exchanges"]
        assert of_pooled == of_single == (10 if schedule == "2d" else 5)
        for k, kind in enumerate(_KINDS):
            for c, combiner in enumerate(_COMBINERS):
                expected = [
                    _expected(
                        kind,
                        _BYTES[_POLICIES[(k + c) % 3]],
                        (k + c) % 2 == 0,
                        step,
                        of_rank["widths"],
                        rank,
                    )
                    for step in steps
                ]
                ids, vectors, pooled = zip(*expected, strict=True)
                assert 0 < sum(pooled) < len(steps), kind  # In some steps.
                seen = of_rank["sent"][f"{kind}_{combiner}"]
                assert seen["ids"] == sum(ids), (rank, kind, combiner)
                assert seen["late_vectors"] == sum(vectors), (rank, kind, combiner)
                assert seen["early_vectors"] == 0
                assert (seen["foreseen_steps"] > 0) == (schedule == "2d")
    for rank, report in enumerate(reports):
        for tokens, counted in (("64", "bags"), ("1", "unique")):
            others = [other["bytes"][tokens] for other in reports]
            own = others.pop(rank)
            sent = 4 * own["width"] * sum(other[counted] for other in others)
            assert own["vectors"] == sent and own["early"] == 0
            structure = 65 * own["bags"] if tokens == "64" else 0
            assert own["ids"] == 4 * (world_size - 1) * (own["unique"] + structure)
        assert report["fit"]["early_vectors"] == 0
        assert (report["fit"]["foreseen_steps"] > 0) == (schedule == "2d")
        # What the simulator knows of bags.
        holders = Partition("column", 5000, 96, world_size)
        for counted, pools in zip(report["counted"], (True, False), strict=True):
            table = Table("t", 5000, 96, prior=0, workers=world_size, **counted["counts"])
            traffic = TableTraffic(table, world_size, holders)
            assert traffic.pools == pools
            assert counted["vectors"] == traffic.looked_up()
            assert counted["ids"] == traffic.ids() + (world_size - 1) * traffic.bags()
            assert counted["gradients"] == traffic.gradients(table.coalesced)
