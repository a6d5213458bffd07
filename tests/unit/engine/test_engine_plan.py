# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Plans as the engine takes them: data types, sparse tensors, trees, and back."""

import pytest

from tfdear.base import names
from tfdear.engine import plan as engine_plan
from tfdear.engine.plan import TensorSpec
from tfdear.planning import schedules

FLOAT16, FLOAT32 = names.data_type("float16"), names.data_type("float32")
PLAIN = engine_plan.PlanFormat()


def dense(count, data_type=FLOAT32):
    return TensorSpec(data_type, count, False, 4 * count)


SPARSE = TensorSpec(FLOAT32, -1, True, 0)


def plan_of(buckets, steps, wait_for_all=False):
    return schedules.Plan(
        tuple(map(tuple, buckets)), tuple(schedules.Step(*step) for step in steps), wait_for_all
    )


def steps_of(plan):
    return [(step.phase, step.bucket, step.chunk, step.chunks) for step in plan.steps]


def test_a_plan_over_one_data_type_survives_both_ways():
    plan = plan_of(
        [[3, 2], [1], [0]],
        [
            ("reduce_scatter", 0, 0, 1),
            ("all_gather", 0, 0, 2),
            ("all_reduce", 1, 0, 1),
            ("all_gather", 0, 1, 2),
            ("all_reduce", 2, 0, 1),
        ],
        wait_for_all=True,
    )
    words = engine_plan.encode(plan, [dense(8)] * 4, range(4), PLAIN)
    assert engine_plan.decode(words) == plan


def test_layers_are_renamed_to_tensors():
    plan = plan_of([[1, 0], [2]], [("all_reduce", 0, 0, 1), ("all_reduce", 1, 0, 1)])
    words = engine_plan.encode(plan, [dense(8)] * 3, [2, 0, 1], PLAIN)
    assert engine_plan.decode(words).buckets == ((0, 2), (1,))


def test_data_types_and_sparse_tensors_get_buckets_of_their_own():
    tensors = [dense(8), dense(8, FLOAT16), SPARSE, dense(8)]
    plan = plan_of([[3, 2, 1, 0]], [("reduce_scatter", 0, 0, 1), ("all_gather", 0, 0, 1)])
    decoded = engine_plan.decode(engine_plan.encode(plan, tensors, range(4), PLAIN))
    assert decoded.buckets == ((3, 0), (2,), (1,))
    assert steps_of(decoded) == [
        ("reduce_scatter", 0, 0, 1),
        ("sparse_gather", 1, 0, 1),
        ("reduce_scatter", 2, 0, 1),
        ("all_gather", 0, 0, 1),
        ("all_gather", 2, 0, 1),
    ]


def test_tensors_sized_at_run_time_are_not_cut():
    tensors = [dense(8), TensorSpec(FLOAT32, -1, False, 0)]
    plan = plan_of([[1, 0]], [("all_reduce", 0, 0, 2), ("all_reduce", 0, 1, 2)])
    decoded = engine_plan.decode(engine_plan.encode(plan, tensors, range(2), PLAIN))
    assert steps_of(decoded) == [
        ("all_reduce", 0, 0, 1),
        ("all_reduce", 1, 0, 2),
        ("all_reduce", 1, 1, 2),
    ]


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        (["reduce_scatter", "all_gather"], ["reduce", "broadcast"]),
        (["all_reduce"], ["reduce", "broadcast"]),
    ],
)
def test_trees_have_halves_of_their_own(phases, expected):
    plan = plan_of([[0]], [(phase, 0, 0, 1) for phase in phases])
    words = engine_plan.encode(plan, [dense(8)], [0], engine_plan.PlanFormat(tree=True))
    assert [step.phase for step in engine_plan.decode(words).steps] == expected


def level_steps(steps, intra=2, inter=2):
    plan = plan_of([[0], [1]], steps)
    plan_format = engine_plan.PlanFormat(levels=engine_plan.Levels(intra, inter))
    decoded = engine_plan.decode(engine_plan.encode(plan, [dense(8)] * 2, range(2), plan_format))
    return [
        f"{step.phase} {step.bucket}" + (f" {step.chunk}/{step.chunks}" if step.chunks > 1 else "")
        for step in decoded.steps
    ]


HALVES = [
    ("reduce_scatter", 0, 0, 1),
    ("reduce_scatter", 1, 0, 1),
    ("all_gather", 1, 0, 2),
    ("all_gather", 1, 1, 2),
    ("all_gather", 0, 0, 1),
]


def test_halves_in_two_levels():
    # The parts of an all-gather are those of the slow level; the node's own follows the last one.
    assert level_steps(HALVES) == [
        "intra_reduce_scatter 0",
        "inter_reduce_scatter 0",
        "intra_reduce_scatter 1",
        "inter_reduce_scatter 1",
        "inter_all_gather 1 0/2",
        "inter_all_gather 1 1/2",
        "intra_all_gather 1",
        "inter_all_gather 0",
        "intra_all_gather 0",
    ]


@pytest.mark.parametrize(("intra", "inter", "level"), [(4, 1, "intra"), (1, 4, "inter")])
def test_a_level_of_one_rank_vanishes(intra, inter, level):
    assert level_steps(HALVES, intra, inter) == [
        f"{level}_reduce_scatter 0",
        f"{level}_reduce_scatter 1",
        f"{level}_all_gather 1 0/2",
        f"{level}_all_gather 1 1/2",
        f"{level}_all_gather 0",
    ]


def test_wholes_in_two_levels_let_the_node_go_on():
    steps = [("all_reduce", 0, 0, 2), ("all_reduce", 0, 1, 2), ("all_reduce", 1, 0, 1)]
    assert level_steps(steps) == [
        "intra_reduce_scatter 0 0/2",
        "inter_reduce_scatter 0 0/2",
        "inter_all_gather 0 0/2",
        "intra_reduce_scatter 0 1/2",
        "intra_all_gather 0 0/2",
        "inter_reduce_scatter 0 1/2",
        "inter_all_gather 0 1/2",
        "intra_reduce_scatter 1",
        "intra_all_gather 0 1/2",
        "inter_reduce_scatter 1",
        "inter_all_gather 1",
        "intra_all_gather 1",
    ]


@pytest.mark.parametrize(("at_least", "compressed"), [(0, True), (15, True), (16, False)])
def test_gaps_do_not_decide_what_is_compressed(at_least, compressed):
    # 3 tensors of 5 elements; in memory they lie 16 elements apart.
    plan = plan_of([[0, 1, 2]], [("all_reduce", 0, 0, 1)])
    words = engine_plan.encode(
        plan,
        [dense(5)] * 3,
        [0, 1, 2],
        engine_plan.PlanFormat(sparse_buckets=engine_plan.SparseBuckets(at_least, None)),
    )
    phases = [step.phase for step in engine_plan.decode(words).steps]
    assert phases == (["sparse_all_gather"] if compressed else ["all_reduce"])


def test_the_order_of_given_buckets():
    # Two layers that stand for the buckets 1 and 0; bucket 0 is too small to be compressed.
    plan = plan_of(
        [[1], [0]],
        [
            ("reduce_scatter", 0, 0, 1),
            ("reduce_scatter", 1, 0, 1),
            ("all_gather", 1, 0, 1),
            ("all_gather", 0, 0, 1),
        ],
    )
    levels = engine_plan.Levels(2, 2)
    words = engine_plan.encode_over_buckets(
        plan,
        [[0], [2, 1]],
        [1, 0],
        [dense(5), dense(8), dense(9)],
        engine_plan.PlanFormat(sparse_buckets=engine_plan.SparseBuckets(6, levels)),
    )
    decoded = engine_plan.decode(words)
    assert decoded.buckets == ((0,), (2, 1))
    assert steps_of(decoded) == [
        ("reduce_scatter", 0, 0, 1),
        ("intra_reduce_scatter", 1, 0, 1),
        ("sparse_exchange", 1, 0, 1),
        ("intra_all_gather", 1, 0, 1),
        ("all_gather", 0, 0, 1),
    ]
