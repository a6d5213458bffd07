# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Compression: its options, when it pays, and the steps that the engine gets of it."""

import pytest

from tfdear import cost_model
from tfdear.compression import MSTopK
from tfdear.engine import plan as engine_plan
from tfdear.job import options
from tfdear.planning import schedules
from tfdear.planning.trace import Layer, Trace

SLOW = cost_model.ring(2, alpha=1e-4, beta=8e-8)  # 100 Mbit/s.
FAST = cost_model.ring(2, alpha=1e-5, beta=1e-10)  # 80 Gbit/s.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"density": 0}, "density"),
        ({"density": -0.1}, "density"),
        ({"density": 1.1}, "density"),
        ({"density": float("nan")}, "density"),
        ({"density": "0.1"}, "density"),
        ({"density": True}, "density"),
        ({"momentum": 1.0}, "momentum"),
        ({"momentum": 0.9, "error_feedback": False}, "error_feedback"),
        ({"warm_up_steps": -1}, "warm_up_steps"),
        ({"warm_up_steps": 1.5}, "warm_up_steps"),
        ({"values": "float64"}, "values"),
        ({"samplings": 0}, "samplings"),
        ({"exchange": "ring"}, "exchange"),
        ({"dense_below": -1}, "dense_below"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        MSTopK(**arguments)


def test_options_and_environment():
    assert options.resolve({}, {}).compression is None
    chosen = options.resolve({}, {"TFDEAR_COMPRESSION": "MSTopK(0.05, values='bfloat16')"})
    assert chosen.compression == MSTopK(0.05, values="bfloat16")
    assert options.resolve({}, {"TFDEAR_COMPRESSION": "None"}).compression is None
    with pytest.raises(ValueError, match="TFDEAR_COMPRESSION"):
        options.resolve({}, {"TFDEAR_COMPRESSION": "MSTopK(2)"})
    with pytest.raises(ValueError, match="compression"):
        options.resolve({"compression": 0.01}, {})


def test_number_of_elements():
    assert MSTopK(0.01).elements(1100, 2) == 6  # 5.5: halves up, as the engine.
    assert MSTopK(0.01).elements(10, 2) == 1


def test_a_reduce_from_four_nodes_on():
    assert [MSTopK().exchange_among(m) for m in (2, 3, 4, 64)] == [
        "all_gather",
        "all_gather",
        "reduce",
        "reduce",
    ]
    assert MSTopK(exchange="all_gather").exchange_among(64) == "all_gather"


def test_small_buckets_stay_dense():
    smallest = MSTopK(0.01).smallest_bucket(SLOW, 2, 2)
    assert 800 <= smallest < 1 << 20
    # On a fast network selecting takes longer than sending.
    assert MSTopK(0.01).smallest_bucket(FAST, 2, 2) is None
    assert MSTopK(0.01, dense_below=77).smallest_bucket(FAST, 2, 2) == 77
    # Start-ups that differ decide: a reduce has four, an all-gather two.
    many = cost_model.ring(8, alpha=1e-3, beta=8e-8)
    gather = MSTopK(0.01, exchange="all_gather").smallest_bucket(many, 2, 8)
    reduce = MSTopK(0.01, exchange="reduce").smallest_bucket(many, 2, 8)
    assert reduce > gather


def test_costs_for_planners():
    inner = cost_model.ring(2, alpha=1e-5, beta=1e-10)
    costs = MSTopK(0.01).costs(inner, SLOW, 2, 2)
    assert costs.all_gather == inner.all_gather
    assert costs.all_reduce.b < SLOW.all_reduce.b / 5
    alone = MSTopK(0.01).costs(None, SLOW, 1, 2)
    assert alone.all_gather.seconds(1 << 20) == 0


@pytest.mark.parametrize(
    ("schedule", "levels", "expected"),
    [
        ("dear", (2, 2), ["intra_reduce_scatter", "sparse_exchange", "intra_all_gather"]),
        ("wfbp", (2, 2), ["intra_reduce_scatter", "sparse_exchange", "intra_all_gather"]),
        ("bytescheduler", (2, 2), ["intra_reduce_scatter", "sparse_exchange", "intra_all_gather"]),
        ("dear", (1, 2), ["sparse_exchange"]),
        ("dear", None, ["sparse_all_gather"]),
        ("wfbp", None, ["sparse_all_gather"]),
    ],
)
def test_steps_of_the_engine(schedule, levels, expected):
    trace = Trace("two", (Layer("a", 400, 1.0, 2.0), Layer("b", 40 << 20, 1.0, 2.0)))
    plan = schedules.make_plan(schedule, [[1], [0]], trace, SLOW)
    tensors = [
        engine_plan.TensorSpec(2, 100, False, 400),
        engine_plan.TensorSpec(2, 10 << 20, False, 40 << 20),
    ]
    sparse = engine_plan.SparseBuckets(
        1000, None if levels is None else engine_plan.Levels(*levels)
    )
    plan_format = engine_plan.PlanFormat(sparse_buckets=sparse)
    words = engine_plan.encode(plan, tensors, [0, 1], plan_format)
    encoded = engine_plan.decode(words)
    large = [step.phase for step in encoded.steps if encoded.buckets[step.bucket] == (1,)]
    small = [step.phase for step in encoded.steps if encoded.buckets[step.bucket] == (0,)]
    assert list(dict.fromkeys(large)) == expected
    assert not any("sparse" in phase or "intra" in phase for phase in small)


def test_only_float32_is_compressed():
    trace = Trace("two", (Layer("a", 8000, 1.0, 2.0), Layer("b", 8000, 1.0, 2.0)))
    plan = schedules.make_plan("dear", [[1, 0]], trace)
    tensors = [
        engine_plan.TensorSpec(2, 2000, False, 8000),
        engine_plan.TensorSpec(1, 4000, False, 8000),  # bfloat16
    ]
    sparse = engine_plan.SparseBuckets(1000, engine_plan.Levels(2, 2))
    plan_format = engine_plan.PlanFormat(sparse_buckets=sparse)
    encoded = engine_plan.decode(engine_plan.encode(plan, tensors, [0, 1], plan_format))
    of_bucket = {encoded.buckets[step.bucket]: step.phase for step in encoded.steps[:3]}
    assert of_bucket[(1,)] == "reduce_scatter"
