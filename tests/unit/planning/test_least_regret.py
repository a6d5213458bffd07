# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Plans that suit computation which is slower than measured, or as fast."""

import pytest

from tfdear import fusion, simulator
from tfdear.planning import least_regret, schedules
from tfdear.planning.cost_model import CommunicationCosts, LinearCost

# At 1 Gbit/s, among four ranks.
HALF = LinearCost(2e-4, 0.75 * 8e-9)
COSTS = CommunicationCosts(HALF, HALF, LinearCost(4e-4, 1.5 * 8e-9))


def scaled(name, ratio):
    """A model whose computation takes so many times as long as its gradients on the line."""
    trace = simulator.load(name)
    line = COSTS.all_reduce.seconds(sum(layer.bytes for layer in trace.layers))
    return trace.scaled(ratio * line / (trace.forward + trace.backward))


def planned(trace):
    return fusion.Planned().plan(trace, COSTS, "dear")


def seconds(plan, trace):
    return schedules.execute(plan, trace, COSTS).iteration_time


@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.4])
@pytest.mark.parametrize("name", ["resnet-50", "densenet-201", "bert-base", "inception-v4"])
def test_loses_little_whatever_computation_takes(name, ratio):
    trace = scaled(name, ratio)
    plan, _ = least_regret.choose(planned, trace, COSTS)
    for factor in (1.0, 1.1, 1.25):
        slower = trace.scaled(factor)
        assert seconds(plan, slower) <= 1.05 * seconds(planned(slower), slower), factor


def test_one_factor_does_not_suit_every_line():
    """A fixed headroom costs a seventh of the time where the line is busy all the time."""
    busy, free = scaled("resnet-50", 1.0), scaled("resnet-50", 0.7)
    assert seconds(planned(busy.scaled(1.25)), busy) > 1.14 * seconds(planned(busy), busy)
    slower = free.scaled(1.25)
    assert seconds(planned(free), slower) > 1.1 * seconds(planned(slower), slower)


def test_tells_what_the_plan_was_made_for():
    trace = scaled("resnet-50", 0.7)
    plan, made_for = least_regret.choose(planned, trace, COSTS)
    assert plan == planned(made_for)
    assert made_for.forward == pytest.approx(1.25 * trace.forward)


def test_without_costs_there_is_one_plan():
    trace = simulator.load("resnet-50")
    made = []

    def make(given):
        made.append(given)
        return schedules.make_plan(
            "dear", fusion.FixedSize(1 << 20).buckets(given, None, "dear"), given
        )

    _, made_for = least_regret.choose(make, trace, None)
    assert made == [trace] and made_for is trace
