# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The plan that loses least, however long computation takes.

Times of real steps scatter, mostly towards longer ones. Where the line has time to spare, a plan
for the measured times makes it wait for late gradients. Where it has none, one for longer times
fills gaps that are not there with all-gathers, and reduce-scatters come late.
"""

from collections.abc import Callable

from tfdear.planning import schedules
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.trace import Trace

# So many times as long as measured computation may take.
_SLOWER = (1.0, 1.1, 1.25)


def choose(
    make: Callable[[Trace], schedules.Plan], trace: Trace, costs: CommunicationCosts | None
) -> tuple[schedules.Plan, Trace]:
    """Of the plans for several times of computation the one that suits all of them.

    Use it for plans that real steps are to be taken with. For each of the times, a plan's regret
    is its iteration time over that of the best of these plans. The plan with the least maximum of
    regret is taken; of equally good ones, that for shorter times.

    Args:
        make: Makes the plan for a trace, with these costs.
        trace: The model, with the measured times.
        costs: The network. None: nothing is measured, and plans do not depend on times.

    Returns:
        The plan, and the trace that it was made for.

    Example:
        >>> from tfdear.planning import least_regret, schedules
        >>> from tfdear.planning.cost_model import CommunicationCosts, LinearCost
        >>> from tfdear.planning.trace import Layer, Trace
        >>> trace = Trace("two", (Layer("a", 8, 1.0, 1.0), Layer("b", 8, 1.0, 1.0)))
        >>> half = LinearCost(0.0, 0.1)
        >>> costs = CommunicationCosts(half, half, LinearCost(0.0, 0.2))
        >>> plan, made_for = least_regret.choose(
        ...     lambda t: schedules.make_plan("dear", [[1], [0]], t, costs), trace, costs
        ... )
    """
    if costs is None:
        return make(trace), trace
    traces = [trace.scaled(factor) for factor in _SLOWER]
    plans = [make(slower) for slower in traces]
    times = [[schedules.execute(plan, t, costs).iteration_time for t in traces] for plan in plans]
    best = [min(of_plans) for of_plans in zip(*times, strict=True)]
    regrets = [max(a / b if b else 1.0 for a, b in zip(own, best, strict=True)) for own in times]
    chosen = regrets.index(min(regrets))
    return plans[chosen], traces[chosen]
