# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Planners against exhaustive search under the played iteration."""

import random
import subprocess
import sys

import planning_instances
import pytest

from tfdear import fusion
from tfdear.planning import schedules
from tfdear.planning.cost_model import CommunicationCosts, LinearCost
from tfdear.planning.trace import Layer, Trace

PLANNERS = [
    fusion.Blocks(),
    fusion.FixedCount(4),
    fusion.FixedSize(100),
    fusion.MGWFBP(),
    fusion.NoFusion(),
    fusion.Planned(),
    fusion.Planned(fusion.Blocks()),
    fusion.SingleBucket(),
]


def seconds(schedule, buckets, trace, costs):
    return schedules.timeline(schedule, buckets, trace, costs).iteration_time


def best_of_all(schedule, trace, costs):
    return min(
        seconds(schedule, buckets, trace, costs)
        for buckets in planning_instances.all_bucket_lists(len(trace.layers))
    )


def sized(*sizes):
    return Trace("sized", tuple(Layer(str(i), size, 1.0, 2.0) for i, size in enumerate(sizes)))


def test_fixed_planners():
    trace = sized(10, 20, 30, 5, 5)
    assert fusion.NoFusion().buckets(trace, None, "dear") == [[4], [3], [2], [1], [0]]
    assert fusion.SingleBucket().buckets(trace, None, "dear") == [[4, 3, 2, 1, 0]]
    assert fusion.FixedCount(2).buckets(trace, None, "dear") == [[4, 3], [2, 1], [0]]
    assert fusion.FixedSize(40).buckets(trace, None, "dear") == [[4, 3, 2], [1, 0]]
    # One that is too large travels alone, and nothing joins it.
    assert fusion.FixedSize(25).buckets(trace, None, "dear") == [[4, 3], [2], [1], [0]]


@pytest.mark.parametrize("planner", PLANNERS, ids=repr)
@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
def test_planners_give_a_bucket_list(planner, schedule):
    rng = random.Random(4)
    for layers in (1, 2, 3, 40):
        trace, costs = planning_instances.random_instance(rng, layers)
        buckets = planner.buckets(trace, costs, schedule)
        # Every layer once, the last one, whose gradient comes first, in front.
        assert [layer for bucket in buckets for layer in bucket] == list(reversed(range(layers)))
        assert all(buckets)
        schedules.make_plan(schedule, buckets, trace)


@pytest.mark.parametrize("planner", PLANNERS, ids=repr)
def test_only_planners_without_profile_plan_without_costs(planner):
    trace = sized(1, 2, 3)
    if planner.needs_profile:
        with pytest.raises(ValueError, match="needs measured costs"):
            planner.buckets(trace, None, "dear")
    else:
        assert planner.buckets(trace, None, "dear")


def check_planned(schedule, instances):
    """Against all bucket lists of models of one to twelve layers, each number as often."""
    rng = random.Random(schedule)
    for _ in range(instances):
        trace, costs = planning_instances.random_instance(rng, rng.randint(1, 12))
        planned = fusion.Planned().buckets(trace, costs, schedule)
        best = best_of_all(schedule, trace, costs)
        assert seconds(schedule, planned, trace, costs) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
def test_planned_equals_exhaustive_search(schedule):
    check_planned(schedule, 25)


@pytest.mark.long
@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
def test_planned_equals_exhaustive_search_on_a_thousand_instances(schedule):
    check_planned(schedule, 1000)


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
@pytest.mark.parametrize("kind", ["transformer", "convolutional", "uniform"])
def test_planned_is_not_beaten_on_big_models(schedule, kind):
    for ratio, startups in ((0.5, 1.0), (1.0, 0.1), (1.33, 0.01), (2.0, 10.0)):
        trace, costs = planning_instances.resembling(kind, 120, ratio, startups)
        best = seconds(schedule, fusion.Planned().buckets(trace, costs, schedule), trace, costs)
        others = [fusion.NoFusion(), fusion.SingleBucket(), fusion.MGWFBP()]
        others += [fusion.FixedSize(1 << exponent) for exponent in range(20, 29)]
        others += [fusion.FixedCount(1 << exponent) for exponent in range(1, 7)]
        for planner in others:
            other = seconds(schedule, planner.buckets(trace, costs, schedule), trace, costs)
            assert best <= other * (1 + 1e-9), (planner, ratio, startups)


@pytest.mark.parametrize("kind", ["transformer", "convolutional", "uniform"])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.33, 2.0])
def test_the_plan_is_never_slower_than_the_barrier_or_the_ideal_buckets(kind, ratio):
    trace, costs = planning_instances.resembling(kind, 120, ratio, startups=1.0)

    def played(plan):
        return schedules.execute(plan, trace, costs).iteration_time

    planned = fusion.Planned()
    ours = played(planned.plan(trace, costs, "dear")) * (1 - 1e-9)
    assert ours <= played(planned.plan(trace, costs, "dear_barrier"))
    ideal = planned.buckets(trace, costs, "dear")
    assert ours <= played(schedules.make_plan("dear", ideal, trace, costs))


def merges_do_not_wait(buckets, trace, cost):
    """Whether the proof of docs/fusion.md covers what Algorithm 1 did.

    No bucket but the front one leaves the line idle for a merge, and that one for no more than a
    start-up.
    """
    line = clock = 0.0
    for bucket in buckets:
        first = clock + trace.layers[bucket[0]].backward
        clock += sum(trace.layers[layer].backward for layer in bucket)
        begin = max(line, clock)
        allowed = cost.a if bucket is buckets[-1] else 0.0
        if begin - max(line, first) > allowed:
            return False
        line = begin + cost.seconds(sum(trace.layers[layer].bytes for layer in bucket))
    return True


def test_mg_wfbp_is_optimal_where_its_merges_do_not_wait():
    rng = random.Random(5)
    covered = 0
    for _ in range(300):
        trace, costs = planning_instances.random_instance(rng, rng.randint(1, 8))
        buckets = fusion.MGWFBP().buckets(trace, costs, "wfbp")
        if merges_do_not_wait(buckets, trace, costs.all_reduce):
            covered += 1
            best = best_of_all("wfbp", trace, costs)
            assert seconds("wfbp", buckets, trace, costs) == pytest.approx(best, rel=1e-9)
    assert covered > 100


def test_mg_wfbp_is_optimal_for_two_layers():
    rng = random.Random(6)
    for _ in range(200):
        trace, costs = planning_instances.random_instance(rng, 2)
        buckets = fusion.MGWFBP().buckets(trace, costs, "wfbp")
        best = best_of_all("wfbp", trace, costs)
        assert seconds("wfbp", buckets, trace, costs) == pytest.approx(best, rel=1e-9)


def test_mg_wfbp_is_not_optimal_for_three_layers():
    # The example of docs/fusion.md. Each wait, 4 s, is shorter than the start-up, 5 s, so
    # Algorithm 1 merges twice and waits 8 s; alone, the last layer is over before that.
    trace = Trace(
        "three", (Layer("1", 1, 1.0, 4.0), Layer("2", 1, 1.0, 4.0), Layer("3", 2, 1.0, 4.0))
    )
    half = LinearCost(2.5, 0.5)
    costs = CommunicationCosts(half, half, LinearCost(5.0, 1.0))
    merged = fusion.MGWFBP().buckets(trace, costs, "wfbp")
    assert merged == [[2, 1, 0]]
    assert seconds("wfbp", merged, trace, costs) == 24.0
    planned = fusion.Planned().buckets(trace, costs, "wfbp")
    assert planned == [[2], [1, 0]]
    assert seconds("wfbp", planned, trace, costs) == 22.0


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="`bytes`"):
        fusion.FixedSize(0)
    with pytest.raises(ValueError, match="`count`"):
        fusion.FixedCount(0)
    with pytest.raises(ValueError, match="`schedule`"):
        fusion.Planned().buckets(sized(1), CommunicationCosts(*[LinearCost(0, 1)] * 3), "fast")


def test_planning_loads_no_tensorflow():
    code = (
        "import sys, tfdear.fusion, tfdear.schedules; "
        "sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
