# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The played iteration against the formulas of docs/fusion.md, and plans against the ideal."""

import itertools
import random

import planning_instances
import pytest

from tfdear.planning import schedules
from tfdear.planning.cost_model import CommunicationCosts, LinearCost
from tfdear.planning.schedules import Plan, Step
from tfdear.planning.trace import Layer, Trace

HALF = LinearCost(0.0, 1.0)
COSTS = CommunicationCosts(HALF, HALF, LinearCost(0.0, 2.0))
# Forward order. Backward: layer 2 is ready at 2, layer 1 at 6, layer 0 at 8.
TRACE = Trace("three", (Layer("0", 1, 1.0, 2.0), Layer("1", 1, 2.0, 4.0), Layer("2", 3, 1.0, 2.0)))
EACH = [[2], [1], [0]]


def carried(timeline):
    return [(t.phase, t.bucket, t.begin, t.end) for t in timeline.transfers]


def formula(schedule, buckets, trace, costs):
    """The iteration time by the recurrences, which know nothing of events."""
    ready = schedules.ready_times(buckets, trace)
    sizes = [sum(trace.layers[i].bytes for i in bucket) for bucket in buckets]
    forward = list(
        itertools.accumulate(sum(trace.layers[i].forward for i in bucket) for bucket in buckets)
    )
    x = s = 0.0
    for r, f, size in zip(ready, forward, sizes, strict=True):
        scatter = costs.reduce_scatter.seconds(size)
        gather = costs.all_gather.seconds(size)
        reduce = costs.all_reduce.seconds(size)
        if schedule == "dear":
            x = max(r, x) + scatter
            s = max(x + f, s + scatter) + gather
        elif schedule == "dear_barrier":
            x = max(r, x) + scatter
            s = max(f, s) + gather
        elif schedule == "wfbp":
            x = max(r, x) + reduce
        elif schedule == "sequential":
            x = max(ready[-1], x) + reduce
        else:
            s = max(r + f, s) + reduce
    return {"dear": s, "dear_barrier": x + s, "bytescheduler": s}.get(schedule, x + forward[-1])


def dear_closed_form(buckets, trace, costs):
    """The maximum over k <= m of the claim, buckets numbered from the front."""
    ready = schedules.ready_times(buckets, trace)[::-1]
    front = list(reversed(buckets))
    sizes = [sum(trace.layers[i].bytes for i in bucket) for bucket in front]
    scatter = list(itertools.accumulate(costs.reduce_scatter.seconds(size) for size in sizes))
    gather = list(itertools.accumulate(costs.all_gather.seconds(size) for size in sizes))
    forward = [sum(layer.forward for layer in trace.layers[min(bucket) :]) for bucket in front]
    return max(
        ready[m] + scatter[m] + gather[k] + forward[k]
        for m in range(len(front))
        for k in range(m + 1)
    )


def test_dear_fills_gaps_and_gives_way():
    timeline = schedules.timeline("dear", EACH, TRACE, COSTS)
    assert carried(timeline) == [
        ("reduce_scatter", 0, 2.0, 5.0),
        ("all_gather", 0, 5.0, 6.0),  # Gives way when bucket 1 is ready,
        ("reduce_scatter", 1, 6.0, 7.0),
        ("all_gather", 1, 7.0, 8.0),  # which the forward pass needs sooner.
        ("reduce_scatter", 2, 8.0, 9.0),
        ("all_gather", 2, 9.0, 10.0),
        ("all_gather", 0, 10.0, 12.0),
    ]
    assert [t.chunk for t in timeline.transfers if t.phase == "all_gather" and t.bucket == 0] == [
        0,
        1,
    ]
    # Forward: layer 0 waits until 10, layer 1 runs from 11 to 13, layer 2 to 14.
    assert timeline.iteration_time == 14.0
    assert (timeline.backward_end, timeline.exposed, timeline.communication) == (8.0, 2.0, 10.0)


def test_barrier_gathers_only_after_the_last_reduce_scatter():
    timeline = schedules.timeline("dear_barrier", EACH, TRACE, COSTS)
    assert carried(timeline)[3:] == [
        ("all_gather", 2, 9.0, 10.0),
        ("all_gather", 1, 10.0, 11.0),
        ("all_gather", 0, 11.0, 14.0),
    ]
    assert timeline.iteration_time == 15.0


def test_all_reduce_schedules():
    wfbp = schedules.timeline("wfbp", EACH, TRACE, COSTS)
    assert carried(wfbp) == [
        ("all_reduce", 0, 2.0, 8.0),
        ("all_reduce", 1, 8.0, 10.0),
        ("all_reduce", 2, 10.0, 12.0),
    ]
    assert wfbp.iteration_time == 16.0
    sequential = schedules.timeline("sequential", EACH, TRACE, COSTS)
    assert carried(sequential)[0] == ("all_reduce", 0, 8.0, 14.0)
    assert sequential.iteration_time == 8.0 + 10.0 + 4.0
    urgent_first = schedules.timeline("bytescheduler", EACH, TRACE, COSTS)
    assert carried(urgent_first) == [
        ("all_reduce", 0, 2.0, 6.0),
        ("all_reduce", 1, 6.0, 8.0),
        ("all_reduce", 2, 8.0, 10.0),
        ("all_reduce", 0, 10.0, 12.0),
    ]
    assert urgent_first.iteration_time == 14.0


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
def test_events_agree_with_the_recurrences(schedule):
    rng = random.Random(schedule)
    for _ in range(200):
        layers = rng.randint(1, 12)
        trace, costs = planning_instances.random_instance(rng, layers)
        buckets = planning_instances.random_buckets(rng, layers)
        played = schedules.timeline(schedule, buckets, trace, costs)
        expected = formula(schedule, buckets, trace, costs)
        assert played.iteration_time == pytest.approx(expected, rel=1e-9)
        if schedule == "dear":
            closed = dear_closed_form(buckets, trace, costs)
            assert closed == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
def test_the_line_carries_one_transfer_at_a_time_and_all_of_them(schedule):
    rng = random.Random(schedule)
    for _ in range(50):
        layers = rng.randint(1, 12)
        trace, costs = planning_instances.random_instance(rng, layers)
        buckets = planning_instances.random_buckets(rng, layers)
        played = schedules.timeline(schedule, buckets, trace, costs)
        for before, after in itertools.pairwise(played.transfers):
            assert before.end <= after.begin
        for phase in {transfer.phase for transfer in played.transfers}:
            for bucket, members in enumerate(buckets):
                parts = [t for t in played.transfers if (t.phase, t.bucket) == (phase, bucket)]
                assert [t.chunk for t in parts] == list(range(parts[0].chunks))
                size = sum(trace.layers[i].bytes for i in members)
                seconds = getattr(costs, phase).seconds(size)
                assert sum(t.end - t.begin for t in parts) == pytest.approx(seconds)


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
@pytest.mark.parametrize("measured", [True, False])
def test_plans_carry_everything_once_in_a_possible_order(schedule, measured):
    rng = random.Random(1)
    for _ in range(50):
        layers = rng.randint(1, 12)
        trace, costs = planning_instances.random_instance(rng, layers)
        buckets = planning_instances.random_buckets(rng, layers)
        plan = schedules.make_plan(schedule, buckets, trace, costs if measured else None, 64)
        assert plan.buckets == tuple(map(tuple, buckets))
        assert plan.wait_for_all == (schedule == "sequential")
        assert len(set(plan.steps)) == len(plan.steps)
        decoupled = schedule in ("dear", "dear_barrier")
        for phase in ("reduce_scatter", "all_gather") if decoupled else ("all_reduce",):
            for bucket in range(len(buckets)):
                steps = [s for s in plan.steps if (s.phase, s.bucket) == (phase, bucket)]
                assert [s.chunk for s in steps] == list(range(steps[0].chunks))
        schedules.execute(plan, trace, costs)  # Raises if a gather precedes its reduction.


def test_plan_without_measurements_is_the_plain_order():
    plan = schedules.make_plan("dear", EACH, TRACE)
    assert [(step.phase, step.bucket) for step in plan.steps] == [
        ("reduce_scatter", 0),
        ("reduce_scatter", 1),
        ("reduce_scatter", 2),
        ("all_gather", 2),
        ("all_gather", 1),
        ("all_gather", 0),
    ]


def test_dear_plan_cuts_a_gather_to_fit_a_gap():
    # The forward pass reaches layer 2 at 12: a gather of it that is not begun early is too late.
    trace = Trace("late", (*TRACE.layers[:1], Layer("1", 1, 1.0, 4.0), *TRACE.layers[2:]))
    plan = schedules.make_plan("dear", EACH, trace, COSTS, chunk_bytes=1)
    assert plan.steps == (
        Step("reduce_scatter", 0, 0, 1),
        Step("all_gather", 0, 0, 3),
        Step("reduce_scatter", 1, 0, 1),
        Step("all_gather", 1, 0, 1),
        Step("reduce_scatter", 2, 0, 1),
        Step("all_gather", 2, 0, 1),
        Step("all_gather", 0, 1, 3),
        Step("all_gather", 0, 2, 3),
    )
    assert schedules.execute(plan, trace, COSTS).iteration_time == 13.0
    assert schedules.timeline("dear", EACH, trace, COSTS, chunk_bytes=1).iteration_time == 13.0
    whole = schedules.timeline("dear", EACH, trace, COSTS, chunk_bytes=100)
    assert whole.iteration_time == 14.0


def test_dear_plan_is_never_slower_than_the_barrier():
    rng = random.Random(2)
    for _ in range(200):
        layers = rng.randint(1, 12)
        trace, costs = planning_instances.random_instance(rng, layers)
        buckets = planning_instances.random_buckets(rng, layers)
        planned = schedules.timeline("dear", buckets, trace, costs, chunk_bytes=64)
        ideal = schedules.timeline("dear", buckets, trace, costs)
        barrier = schedules.timeline("dear_barrier", buckets, trace, costs)
        assert planned.iteration_time <= barrier.iteration_time * (1 + 1e-9)
        assert ideal.iteration_time <= planned.iteration_time * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["transformer", "convolutional", "uniform"])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.33, 2.0])
def test_dear_plan_comes_close_to_the_ideal_queue(kind, ratio):
    trace, costs = planning_instances.resembling(kind, 150, ratio, startups=0.1)
    buckets = planning_instances.merge(150, [i % 4 == 0 for i in range(149)])
    ideal = schedules.timeline("dear", buckets, trace, costs).iteration_time
    planned = schedules.timeline("dear", buckets, trace, costs, 1 << 20).iteration_time
    assert planned <= 1.02 * ideal


def test_bytescheduler_plan_lets_the_front_overtake():
    plan = schedules.make_plan("bytescheduler", EACH, TRACE, COSTS, chunk_bytes=1)
    assert [(step.bucket, step.chunk) for step in plan.steps] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (2, 0),
        (0, 2),
    ]


def test_bytescheduler_gives_the_line_its_credit():
    plan = schedules.make_plan("bytescheduler", EACH, TRACE, COSTS, chunk_bytes=1, credit=2)
    # The third part was given to the line before the next bucket was ready.
    assert [(step.bucket, step.chunk) for step in plan.steps] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (2, 0),
    ]
    with pytest.raises(ValueError, match="credit"):
        schedules.make_plan("bytescheduler", EACH, TRACE, COSTS, credit=0)


@pytest.mark.parametrize("kind", ["convolutional", "transformer"])
def test_bytescheduler_is_tuned(kind):
    trace, costs = planning_instances.resembling(kind, 60, 1.2, startups=0.1)
    buckets = planning_instances.merge(60, [i % 4 == 0 for i in range(59)])

    def seconds(*arguments):
        plan = schedules.make_plan("bytescheduler", buckets, trace, costs, *arguments)
        return schedules.execute(plan, trace, costs).iteration_time

    given = [seconds(size, credit) for size in (1 << 20, 4 << 20) for credit in (1, 4)]
    assert seconds() <= min(given)
    assert len(set(given)) > 1


def test_execute_waits_in_order():
    # The front bucket first: the line stays idle until it is ready, though others are.
    plan = Plan(((2, 1), (0,)), (Step("all_reduce", 1, 0, 1), Step("all_reduce", 0, 0, 1)), False)
    timeline = schedules.execute(plan, TRACE, COSTS)
    assert carried(timeline) == [("all_reduce", 1, 8.0, 10.0), ("all_reduce", 0, 10.0, 18.0)]


def test_execute_refuses_to_gather_what_is_not_reduced():
    steps = (Step("all_gather", 0, 0, 1), Step("reduce_scatter", 0, 0, 1))
    with pytest.raises(ValueError, match="before it is reduced"):
        schedules.execute(Plan(((2, 1, 0),), steps, False), TRACE, COSTS)


@pytest.mark.parametrize(
    "buckets", [[], [[2], [1]], [[0], [1], [2]], [[2], [], [1, 0]], [[2, 2, 1, 0]]]
)
def test_bucket_lists_are_checked(buckets):
    with pytest.raises(ValueError, match="from the last to the first"):
        schedules.timeline("dear", buckets, TRACE, COSTS)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="`schedule`"):
        schedules.timeline("fast", EACH, TRACE, COSTS)
    with pytest.raises(ValueError, match="`chunk_bytes`"):
        schedules.make_plan("dear", EACH, TRACE, COSTS, chunk_bytes=0)
