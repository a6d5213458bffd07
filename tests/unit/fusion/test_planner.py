# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Planners as text, and what the engine gets of them."""

import pytest

from tfdear import cost_model, fusion
from tfdear.fusion import planner
from tfdear.job import options
from tfdear.planning import schedules
from tfdear.planning.trace import Layer, Trace

TRACE = Trace("small", tuple(Layer(f"layer {i}", 1 << 20, 0.001, 0.002) for i in range(12)))
COSTS = cost_model.ring(4, alpha=5e-5, beta=8e-9)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FixedSize", fusion.FixedSize()),
        ("FixedSize(4 << 20)", fusion.FixedSize(4 << 20)),
        ("FixedSize(bytes=3 * 1024)", fusion.FixedSize(3072)),
        (" Planned() ", fusion.Planned()),
        ("SyncEASGD", fusion.SingleBucket()),
        ("FixedCount(3)", fusion.FixedCount(3)),
        ("Planned(Blocks())", fusion.Planned(fusion.Blocks())),
        (
            "Planned(blocks=Blocks(groups=['a/.*', ('b', 'c')]))",
            fusion.Planned(fusion.Blocks(groups=["a/.*", ["b", "c"]])),
        ),
    ],
)
def test_planners_are_written_as_in_python(text, expected):
    assert fusion.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Nothing",
        "FixedSize(",
        "FixedSize(x)",
        "FixedSize(-1)",
        "FixedCount(1, 2, 3)",
        "Planned(FixedSize())",
        "Planned(Nothing())",
        "Blocks(groups=[len('a')])",
        "__import__('os')",
        "1 + 1",
    ],
)
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="not a planner"):
        fusion.parse(text)


def test_the_environment_names_a_planner():
    chosen = options.resolve({}, {"TFDEAR_FUSION": "FixedCount(3)", "TFDEAR_BUCKET_BYTES": "7"})
    assert chosen.fusion == fusion.FixedCount(3)
    assert options.resolve({}, {"TFDEAR_BUCKET_BYTES": "7"}).fusion == fusion.FixedSize(7)
    with pytest.raises(ValueError, match="TFDEAR_FUSION"):
        options.resolve({}, {"TFDEAR_FUSION": "Nothing"})


def test_the_barrier_belongs_to_dear():
    assert options.resolve({"barrier": True}, {}).planned_schedule == "dear_barrier"
    assert options.resolve({}, {"TFDEAR_BARRIER": "1"}).planned_schedule == "dear_barrier"
    with pytest.raises(ValueError, match="barrier"):
        options.resolve({"barrier": True, "schedule": "wfbp"}, {})
    with pytest.raises(ValueError, match="fusion"):
        options.resolve({"fusion": fusion.Planned}, {})


def test_connections_are_counted():
    assert options.resolve({}, {}).connections == 0
    assert options.resolve({}, {"TFDEAR_CONNECTIONS": "4"}).connections == 4
    assert options.resolve({"connections": 2}, {"TFDEAR_CONNECTIONS": "4"}).connections == 2
    for wrong in (-1, 17, 1.5, "4"):
        with pytest.raises(ValueError, match="connections"):
            options.resolve({"connections": wrong}, {})
    with pytest.raises(ValueError, match="TFDEAR_CONNECTIONS"):
        options.resolve({}, {"TFDEAR_CONNECTIONS": "many"})


def test_every_planner_is_one():
    for name in fusion.__all__:
        made = getattr(fusion, name)(3) if name == "FixedCount" else getattr(fusion, name)()
        assert isinstance(made, planner.Planner), name
        searches = name in ("Bayesian", "RandomSearch", "GridSearch")
        assert isinstance(made, planner.SearchingPlanner) == searches, name


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
def test_the_engine_gets_a_plan_no_slower_than_the_ideal_buckets_allow(schedule):
    plan = planner.make_plan(fusion.Planned(), schedule, TRACE, COSTS)
    ideal = fusion.Planned().buckets(TRACE, COSTS, schedule)
    made_of_ideal = schedules.make_plan(schedule, ideal, TRACE, COSTS)
    seconds = schedules.execute(plan, TRACE, COSTS).iteration_time
    assert seconds <= schedules.execute(made_of_ideal, TRACE, COSTS).iteration_time + 1e-12


def test_the_first_buckets():
    for compressed in (False, True):
        assert planner.first_bucket_bytes(fusion.FixedSize(77), compressed) == 77
        assert planner.first_bucket_bytes(fusion.NoFusion(), compressed) == 1
        assert planner.first_bucket_bytes(fusion.SingleBucket(), compressed) > 1 << 60
        assert planner.first_bucket_bytes(fusion.MGWFBP(), compressed) == 25 << 20
    assert planner.first_bucket_bytes(fusion.Planned(), False) == 25 << 20
    # Those that are kept are of a part of the model.
    assert planner.first_bucket_bytes(fusion.Planned(), True) == 0


def test_blocks_are_found_before_anything_is_measured():
    for without in (fusion.Planned(), fusion.FixedSize()):
        assert planner.find_blocks(without) is None
    paths, sizes = ["a/kernel", "a/bias", "b/kernel"], [8, 8, 8]
    for made in (fusion.Blocks(), fusion.Planned(fusion.Blocks())):
        assert planner.find_blocks(made)(paths, sizes) == [[0, 1], [2]]
        assert planner.keeps_first_buckets(made)
