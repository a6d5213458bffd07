# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The plan that a layout starts with: which tensors share a bucket, and in which order."""

import random

import pytest

from tfdear.base import names
from tfdear.engine import plan as engine_plan
from tfdear.engine.first_plan import FirstPlan, cut
from tfdear.engine.plan import Levels, PlanFormat, SparseBuckets, TensorSpec

SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}
SLOT_BYTES = 64
HUGE = 1 << 62


def dense(count, data_type="float32"):
    return TensorSpec(names.data_type(data_type), count, False, max(count, 0) * SIZES[data_type])


def sparse():
    return TensorSpec(names.data_type("float32"), -1, True, 0)


def slot(tensor):
    return -(-tensor.bytes // SLOT_BYTES) * SLOT_BYTES


def plan_of(tensors, *, schedule="dear", bucket_bytes=1, lane=names.Lane.GRADIENTS, **plan_format):
    first_plan = FirstPlan(schedule, bucket_bytes, PlanFormat(**plan_format))
    return engine_plan.decode(first_plan.encode(tensors, lane))


def steps_of(*arguments, **keywords):
    steps = plan_of(*arguments, **keywords).steps
    assert all((step.chunk, step.chunks) == (0, 1) for step in steps)
    return " ".join(f"{step.phase}{step.bucket}" for step in steps)


class TestBuckets:
    def test_one_byte_gives_every_tensor_its_own_bucket_last_first(self):
        assert cut([dense(4), dense(1), dense(900)], 1) == [[2], [1], [0]]

    def test_a_huge_limit_gives_one_bucket(self):
        assert cut([dense(4), dense(17), dense(900)], HUGE) == [[2, 1, 0]]

    def test_a_kibibyte_is_filled_to_the_brim_and_not_beyond(self):
        # 64 float32 fill a slot of 256 bytes: four to a bucket.
        tensors = [dense(64)] * 9
        assert cut(tensors, 1024) == [[8, 7, 6, 5], [4, 3, 2, 1], [0]]
        assert cut(tensors, 1023) == [[8, 7, 6], [5, 4, 3], [2, 1, 0]]

    def test_gaps_count_against_the_limit(self):
        assert cut([dense(1)] * 3, 2 * SLOT_BYTES) == [[2, 1], [0]]

    def test_a_tensor_above_the_limit_travels_alone(self):
        assert cut([dense(8), dense(1000), dense(8), dense(8)], 1024) == [[3, 2], [1], [0]]

    def test_data_types_do_not_mix(self):
        types = ("float32", "float16", "float32", "float16", "int64")
        assert cut([dense(8, data_type) for data_type in types], HUGE) == [[4], [3, 1], [2, 0]]

    def test_sparse_and_unsized_tensors_travel_alone(self):
        # They do not end the bucket that is being filled.
        tensors = [dense(8), sparse(), dense(8), dense(-1), dense(8)]
        assert cut(tensors, HUGE) == [[4, 2, 0], [3], [1]]
        tensors = [sparse(), sparse(), dense(-1), dense(-1)]
        assert cut(tensors, HUGE) == [[3], [2], [1], [0]]

    def test_empty_lists_and_empty_tensors(self):
        assert cut([], 1024) == []
        assert cut([dense(0), dense(0)], 1) == [[1, 0]]

    def test_tensors_of_many_gigabytes(self):
        tensors = [dense((1 << 33) + 5), dense((1 << 33) + 5), dense(7)]
        # 2^35 bytes do not fit into 2^34, nor into what is left of them modulo 2^32.
        assert len(cut(tensors, 1 << 34)) == 3
        assert len(cut(tensors, 1 << 37)) == 1

    def test_rules_hold_for_random_tensors(self):
        r = random.Random(1)
        for _ in range(300):
            tensors = []
            for _ in range(r.randrange(40)):
                count = -1 if r.randrange(8) == 0 else r.randrange(700)
                data_type = r.choice(names.DATA_TYPES)
                tensors.append(sparse() if r.randrange(8) == 0 else dense(count, data_type))
            for limit in (1, 1024, 5000, 1 << 30, HUGE):
                check_rules(tensors, limit, cut(tensors, limit))

    def test_the_usual_size(self):
        def sizes(elements, count):
            buckets = plan_of([dense(elements)] * count, bucket_bytes=0).buckets
            return [len(bucket) * elements * 4 for bucket in buckets]

        assert sizes(16, 100) == [6400]  # Too small to be cut.
        assert sizes(1 << 14, 4) == [64 << 10] * 4
        assert sizes(1 << 16, 64) == [1 << 20] * 16
        assert sizes(1 << 20, 256)[0] == 24 << 20  # No larger than 25 MiB.


def check_rules(tensors, limit, buckets):
    """What must hold for any tensors and any limit."""
    assert sorted(tensor for bucket in buckets for tensor in bucket) == list(range(len(tensors)))
    firsts = [bucket[0] for bucket in buckets]
    assert firsts == sorted(firsts, reverse=True), "buckets go from the last tensor to the first"
    before = {}  # By data type: bytes of the last bucket before this one that takes company.
    for bucket in buckets:
        assert bucket == sorted(bucket, reverse=True)
        specs = [tensors[tensor] for tensor in bucket]
        data_type = specs[0].data_type
        assert {spec.data_type for spec in specs} == {data_type}
        if any(spec.alone for spec in specs):
            assert len(specs) == 1
            continue
        total = sum(map(slot, specs))
        assert len(specs) == 1 or total <= limit
        if data_type in before:
            assert before[data_type] + slot(specs[0]) > limit, "the bucket before had room"
        before[data_type] = total


class TestBlocks:
    TENSORS = [dense(4), sparse(), dense(2), dense(8), dense(4, "float16"), dense(3)]

    def plan(self, blocks, paths=("a",) * 6, lane=names.Lane.GRADIENTS):
        asked = []

        def find_blocks(*arguments):
            asked.append(arguments)
            return blocks

        first_plan = FirstPlan("dear", HUGE, PlanFormat(), find_blocks)
        plan = engine_plan.decode(first_plan.encode(self.TENSORS, lane, paths))
        assert asked == ([(paths, [16, 0, 8, 32, 8, 12])] if paths else [])
        return plan

    def test_they_are_buckets_in_the_order_of_the_backward_pass(self):
        # The last block is done when the gradient of tensor 2 is there.
        plan = self.plan([[0], [1], [3], [5, 2, 4]])
        assert plan.buckets == ((3,), (5, 2), (4,), (1,), (0,))
        steps = " ".join(f"{step.phase}{step.bucket}" for step in plan.steps)
        assert steps == (
            "reduce_scatter0 reduce_scatter1 reduce_scatter2 sparse_gather3 reduce_scatter4 "
            "all_gather4 all_gather1 all_gather0 all_gather2"
        )

    def test_what_cannot_share_a_bucket_does_not(self):
        assert self.plan([[0, 1, 2, 3, 4, 5]]).buckets == ((5, 3, 2, 0), (4,), (1,))

    def test_they_are_sought_when_all_paths_are_known(self):
        assert self.plan([], paths=None).buckets == ((5, 3, 2, 0), (4,), (1,))


MIXED = [dense(4), sparse(), dense(4)]


@pytest.mark.parametrize(
    ("schedule", "tree", "expected"),
    [
        (
            "dear",
            False,
            "reduce_scatter0 sparse_gather1 reduce_scatter2 all_gather2 all_gather0",
        ),
        ("wfbp", False, "all_reduce0 sparse_gather1 all_reduce2"),
        ("sequential", False, "all_reduce0 sparse_gather1 all_reduce2"),
        ("dear", True, "reduce0 sparse_gather1 reduce2 broadcast2 broadcast0"),
        ("wfbp", True, "reduce0 broadcast0 sparse_gather1 reduce2 broadcast2"),
    ],
)
def test_the_order_of_the_schedule(schedule, tree, expected):
    assert steps_of(MIXED, schedule=schedule, tree=tree) == expected
    plan = plan_of(MIXED, schedule=schedule, tree=tree)
    assert plan.wait_for_all == (schedule == "sequential")


@pytest.mark.parametrize(("other", "same"), [("dear_barrier", "dear"), ("bytescheduler", "wfbp")])
def test_some_schedules_differ_later_only(other, same):
    assert plan_of(MIXED, schedule=other) == plan_of(MIXED, schedule=same)


def test_sums_that_somebody_waits_for_are_not_put_off():
    sparse_buckets = SparseBuckets(1, None)
    for schedule in names.SCHEDULES:
        for lane in set(names.Lane) - {names.Lane.GRADIENTS}:
            plan = plan_of(MIXED, schedule=schedule, lane=lane, sparse_buckets=sparse_buckets)
            assert plan == plan_of(MIXED, schedule="wfbp")


@pytest.mark.parametrize(
    ("schedule", "levels", "expected"),
    [
        (
            "dear",
            (2, 2),
            "intra_reduce_scatter0 inter_reduce_scatter0 sparse_gather1 intra_reduce_scatter2 "
            "inter_reduce_scatter2 inter_all_gather2 intra_all_gather2 inter_all_gather0 "
            "intra_all_gather0",
        ),
        # The node begins with bucket 2 before it waits for what the nodes sum of bucket 0.
        (
            "wfbp",
            (2, 2),
            "intra_reduce_scatter0 inter_reduce_scatter0 inter_all_gather0 sparse_gather1 "
            "intra_reduce_scatter2 intra_all_gather0 inter_reduce_scatter2 inter_all_gather2 "
            "intra_all_gather2",
        ),
        (
            "dear",
            (2, 1),
            "intra_reduce_scatter0 sparse_gather1 intra_reduce_scatter2 intra_all_gather2 "
            "intra_all_gather0",
        ),
        (
            "dear",
            (1, 2),
            "inter_reduce_scatter0 sparse_gather1 inter_reduce_scatter2 inter_all_gather2 "
            "inter_all_gather0",
        ),
    ],
)
def test_levels_that_exist_are_used(schedule, levels, expected):
    assert steps_of(MIXED, schedule=schedule, levels=Levels(*levels)) == expected


@pytest.mark.parametrize(
    ("schedule", "levels", "expected"),
    [
        # Bucket 0 is of the last tensor; that of four elements and that of float64 stay dense.
        (
            "wfbp",
            (2, 2),
            "intra_reduce_scatter0 sparse_exchange0 all_reduce1 all_reduce2 "
            "intra_reduce_scatter3 intra_all_gather0 sparse_exchange3 intra_all_gather3",
        ),
        (
            "dear",
            (2, 2),
            "intra_reduce_scatter0 sparse_exchange0 reduce_scatter1 reduce_scatter2 "
            "intra_reduce_scatter3 sparse_exchange3 intra_all_gather3 all_gather2 all_gather1 "
            "intra_all_gather0",
        ),
        (
            "dear",
            (1, 2),
            "sparse_exchange0 reduce_scatter1 reduce_scatter2 sparse_exchange3 all_gather2 "
            "all_gather1",
        ),
        ("wfbp", None, "sparse_all_gather0 all_reduce1 all_reduce2 sparse_all_gather3"),
    ],
)
def test_large_float_buckets_are_exchanged_sparsely(schedule, levels, expected):
    tensors = [dense(4000), dense(4000, "float64"), dense(4), dense(3000)]
    sparse_buckets = SparseBuckets(1000, None if levels is None else Levels(*levels))
    assert steps_of(tensors, schedule=schedule, sparse_buckets=sparse_buckets) == expected


@pytest.mark.parametrize(("at_least", "compressed"), [(0, True), (15, True), (16, False)])
def test_gaps_do_not_decide_what_is_compressed(at_least, compressed):
    # 3 tensors of 5 elements take slots of 16.
    phases = steps_of(
        [dense(5)] * 3, bucket_bytes=HUGE, sparse_buckets=SparseBuckets(at_least, None)
    )
    assert phases.startswith("sparse_all_gather") == compressed


def test_what_a_bucket_of_many_gigabytes_holds_decides():
    sparse_buckets = SparseBuckets(5 << 30, None)
    plan = plan_of([dense(1 << 31)] * 3, bucket_bytes=HUGE, sparse_buckets=sparse_buckets)
    assert [step.phase for step in plan.steps] == ["sparse_all_gather"]
