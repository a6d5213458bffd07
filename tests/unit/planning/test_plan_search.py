# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The plan that training runs, against the lower bound of all plans."""

import itertools
import math
import random
import time

import planning_instances
import pytest

from tfdear import cost_model, fusion, simulator
from tfdear.planning import optimal_buckets, plan_search, schedules
from tfdear.planning.alignment_bound import can_fit
from tfdear.planning.least_time import LeastTime
from tfdear.planning.optimal_buckets import Sums
from tfdear.planning.plan_dive import Dive
from tfdear.planning.plan_tree import PlanTree
from tfdear.planning.trace import Layer, Trace

TRACES = ("resnet-50", "densenet-201", "inception-v4", "bert-base", "bert-large")


def time_and_bound(trace, costs):
    plan = fusion.Planned().plan(trace, costs, "dear")
    seconds = schedules.execute(plan, trace, costs).iteration_time
    return seconds, plan_search.lower_bound(trace, costs, seconds)


def trees(trace, costs):
    """A tree of all plans for several numbers of parts that are told apart."""
    sums = Sums.of(trace)
    least_time = LeastTime(sums, costs)
    return [PlanTree(sums, costs, least_time, parts) for parts in (1, 2, 3, 6)]


def test_nothing_beats_the_lower_bound():
    rng = random.Random(2)
    for _ in range(150):
        trace, costs = planning_instances.random_instance(rng, rng.randint(1, 7))
        bound = optimal_buckets.lower_bound(trace, costs) * (1 - 1e-9)
        for buckets in planning_instances.all_bucket_lists(len(trace.layers)):
            for schedule in ("dear", "dear_barrier"):
                ideal = schedules.timeline(schedule, buckets, trace, costs)
                assert ideal.iteration_time >= bound
        found = plan_search.search(trace, costs)
        assert found.time >= found.bound * (1 - 1e-9) >= bound * (1 - 1e-9)
        assert schedules.execute(found.plan, trace, costs).iteration_time == found.time
        assert can_fit(Sums.of(trace), costs, found.time)


def fastest_order(trace, costs, buckets, parts):
    """Least iteration time of a bucket list in these parts, over all orders of its steps."""
    ready, clock = [], 0.0
    for bucket in buckets:
        clock += sum(trace.layers[layer].backward for layer in bucket)
        ready.append(clock)
    forward = [sum(layer.forward for layer in trace.layers[bucket[-1] :]) for bucket in buckets]
    size = [sum(trace.layers[layer].bytes for layer in bucket) for bucket in buckets]
    computation = ready[-1] + forward[-1]
    best = math.inf

    def go(line, done, worst):
        # `done`: parts that were carried of every half, reduce-scatters and all-gathers in turn.
        nonlocal best
        if worst >= best:
            return
        if all(count == parts[half] for half, count in enumerate(done)):
            best = worst
            return
        for half, count in enumerate(done):
            bucket, gathers = divmod(half, 2)
            if count == parts[half] or (gathers and done[half - 1] < parts[half - 1]):
                continue
            cost = costs.all_gather if gathers else costs.reduce_scatter
            begin = max(line, ready[bucket])
            whole = (*done[:half], parts[half], *done[half + 1 :])
            one = (*done[:half], count + 1, *done[half + 1 :])
            # A half that travels without a break is not cut.
            if count == 0 and parts[half] > 1:
                end = begin + cost.seconds(size[bucket])
                go(end, whole, max(worst, end + forward[bucket] * gathers))
            end = begin + cost.seconds(size[bucket] / parts[half])
            go(end, one, max(worst, end + forward[bucket] * gathers))

    go(0.0, (0,) * len(parts), computation)
    return best


def test_no_order_of_parts_beats_the_raised_bounds():
    """Where the cheap bound is out of reach, the tree's lies between it and all orders of parts."""
    rng = random.Random(5)
    bounds_met = raised = instances = 0
    while instances < 30:
        trace, costs = planning_instances.random_instance(rng, rng.randint(2, 3))
        cheap = optimal_buckets.lower_bound(trace, costs)
        if plan_search.search(trace, costs).time <= 1.001 * cheap:
            continue
        instances += 1
        fastest = math.inf
        for buckets in planning_instances.all_bucket_lists(len(trace.layers)):
            numbers = (1, 2, 3) if len(buckets) < 3 else (1, 2)
            for parts in itertools.product(numbers, repeat=2 * len(buckets)):
                if sum(parts) <= 8:
                    fastest = min(fastest, fastest_order(trace, costs, buckets, parts))
        assert can_fit(Sums.of(trace), costs, fastest)
        raised += not can_fit(Sums.of(trace), costs, cheap * 1.001)
        for tree in trees(trace, costs):
            bound = tree.search(math.inf, 10**9).bound
            assert bound <= fastest * (1 + 1e-9)
            bounds_met += bound >= fastest * (1 - 1e-9)
        assert max(tree.search(math.inf, 10**9).bound for tree in trees(trace, costs)) > cheap
    # The bounds do not hold because they are low.
    assert bounds_met > 2 * instances, bounds_met
    assert raised > instances / 2, raised


def test_a_plan_carries_everything_once_and_is_the_same_every_time():
    rng = random.Random(3)
    for _ in range(60):
        trace, costs = planning_instances.random_instance(rng, rng.randint(1, 12))
        plan = plan_search.search(trace, costs).plan
        assert plan == plan_search.search(trace, costs).plan
        assert [layer for bucket in plan.buckets for layer in bucket] == list(
            reversed(range(len(trace.layers)))
        )
        parts = {}
        for step in plan.steps:
            parts.setdefault((step.phase, step.bucket, step.chunks), []).append(step.chunk)
        assert sorted((phase, bucket) for phase, bucket, _ in parts) == sorted(
            (phase, bucket)
            for phase in ("reduce_scatter", "all_gather")
            for bucket in range(len(plan.buckets))
        )
        for (_, _, chunks), seen in parts.items():
            assert seen == list(range(chunks))


def over_bound(instances):
    """Iteration time over the bound, for each instance; prints what is worth knowing of all."""
    over, seconds = [], []
    for trace, costs in instances:
        begin = time.process_time()
        planned, bound = time_and_bound(trace, costs)
        seconds.append(time.process_time() - begin)
        over.append(planned / bound)
    beyond = sorted(value for value in over if value > 1.01)
    print(
        f"{len(beyond)} of {len(over)} plans beyond 1 % of the bound {beyond}, worst "
        f"{max(over):.4f}; processor time of a search: median "
        f"{sorted(seconds)[len(seconds) // 2]:.3f} s, longest {max(seconds):.1f} s"
    )
    return over


def check_within_one_percent(instances):
    assert max(over_bound(instances)) <= 1.01


def realistic(count, seed):
    rng = random.Random(seed)
    return [planning_instances.realistic_instance(rng) for _ in range(count)]


def small(count, seed, most=12):
    rng = random.Random(seed)
    return [planning_instances.random_instance(rng, rng.randint(1, most)) for _ in range(count)]


def test_plans_are_near_the_bound_on_random_models():
    check_within_one_percent(realistic(40, seed=4))


def test_plans_are_near_the_bound_where_start_ups_are_long():
    check_within_one_percent(small(200, seed=5))


@pytest.mark.long
def test_plans_are_near_the_bound_on_a_thousand_random_models():
    check_within_one_percent(realistic(1000, seed=4))


@pytest.mark.long
def test_plans_are_near_the_bound_on_a_thousand_models_with_long_start_ups():
    check_within_one_percent(small(1000, seed=11))


@pytest.mark.long
def test_what_is_not_proven_with_more_tensors_and_long_start_ups():
    """With more buckets, and start-ups of 1 % and more, a bound of 1 % is not always found."""
    over = over_bound(small(300, seed=21, most=40))
    assert sum(value > 1.01 for value in over) <= 3
    assert max(over) <= 1.02


def known(name, workers, rates):
    trace = simulator.load(name)
    for number, rate in itertools.product(workers, rates):
        costs = cost_model.ring(number, alpha=50e-6, beta=8 / rate)
        line = costs.reduce_scatter.seconds(trace.bytes) + costs.all_gather.seconds(trace.bytes)
        for ratio in (0.5, 1, 2, 4):
            yield trace.scaled(line / ratio / (trace.forward + trace.backward)), costs


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACES)
def test_plans_are_near_the_bound_on_known_models(name):
    check_within_one_percent(known(name, (2, 16), (1e9,)))


@pytest.mark.long
@pytest.mark.parametrize("name", TRACES)
def test_plans_are_near_the_bound_on_known_models_and_many_networks(name):
    check_within_one_percent(known(name, (2, 4, 8, 16, 64), (1e9, 10e9)))


def test_a_dive_passes_nothing_that_is_more_urgent():
    in_parts = 0
    for trace, costs in realistic(4, seed=8) + small(60, seed=8):
        sums = Sums.of(trace)
        built = Dive(sums, costs, LeastTime(sums, costs)).run(width=1)
        plan = plan_search._make_plan(sums, built.cuts, built.carried)
        transfers = schedules.execute(plan, trace, costs).transfers
        ready = [float(sums.ready[cut]) for cut in built.cuts]
        reduced = {t.bucket: t.end for t in transfers if t.phase == "reduce_scatter"}
        for place, transfer in enumerate(transfers):
            in_parts += transfer.chunks > 1
            for later in transfers[place + 1 :]:
                scatters = later.phase == "reduce_scatter"
                since = ready[later.bucket] if scatters else reduced[later.bucket]
                # Buckets in front have the higher numbers.
                if later.bucket > transfer.bucket:
                    assert since >= transfer.begin * (1 - 1e-9), (transfer, later)
    assert in_parts > 10


def test_a_large_table_blocks_nothing():
    # Its gradient is ready first, after which the rest is ready soon and needed soon.
    layers = [Layer(f"block{i}", 7 << 20, 0.01, 0.02) for i in range(12)]
    table = Layer("table", 94_000_000, 0.2, 0.01)
    trace = Trace("table", (*layers, table))
    costs = cost_model.ring(2, alpha=100e-6, beta=8 / 1e9)
    planned, bound = time_and_bound(trace, costs)
    assert planned <= 1.01 * bound
    plan = fusion.Planned().plan(trace, costs, "dear")
    played = schedules.execute(plan, trace, costs)
    reduced = {}
    for transfer in played.transfers:
        if transfer.phase == "reduce_scatter":
            reduced[transfer.bucket] = transfer.end
    for gather in played.transfers:
        if gather.phase != "all_gather" or gather.chunk > 0:
            continue
        # What is less urgent and takes the line after this could: one part at most.
        less_urgent = [
            other
            for other in played.transfers
            if reduced[gather.bucket] <= other.begin < gather.begin and other.bucket < gather.bucket
        ]
        assert len(less_urgent) <= 1, gather
