# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The bucket list with the shortest iteration in the model. Imports no TensorFlow."""

import dataclasses

from tfdear.fusion.planner import DEFAULT_BUCKET_BYTES
from tfdear.planning import plan_search, schedules
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.optimal_buckets import optimal_buckets
from tfdear.planning.trace import Trace


@dataclasses.dataclass(frozen=True)
class Planned:
    """Fuses gradients so that the modelled iteration is as short as it can be.

    Use it when the network's start-up time and the model's layer times are measured: large
    buckets save start-ups, small ones start earlier and free the next forward pass earlier, and
    this planner weighs the two exactly, for the schedule in use.

    It is the default of `DearStrategy`. `buckets` are optimal for a queue that
    interrupts transfers at no cost; for "dear", what the engine gets is `plan`, in which every
    interruption costs a start-up.

    Example:

    >>> from tfdear import cost_model, fusion
    >>> from tfdear.trace import Layer, Trace
    >>> trace = Trace("two", (Layer("a", 8, 1.0, 2.0), Layer("b", 8, 1.0, 2.0)))
    >>> fusion.Planned().buckets(trace, cost_model.ring(2, alpha=9.0, beta=0.25), "dear")
    [[1, 0]]

    Reference: `docs/fusion.md`; the problem is that of Zhang et al., "DeAR", section IV, and of
    Shi et al., "MG-WFBP", section 3.
    """

    needs_profile = True
    keeps_first_buckets = True

    def first_bucket_bytes(self, compressed: bool) -> int:
        """Returns the default; with compression 0, as the first buckets then stay."""
        return 0 if compressed else DEFAULT_BUCKET_BYTES

    def buckets(
        self, trace: Trace, costs: CommunicationCosts | None, schedule: str
    ) -> list[list[int]]:
        """Returns the buckets in backward order.

        Args:
            trace: The model with its measured times.
            costs: The measured network.
            schedule: One of `tfdear.schedules.SCHEDULES`.

        Returns:
            Lists of layer indices, last layers first.

        Raises:
            ValueError: There are no costs, or the schedule is unknown.
        """
        return optimal_buckets(trace, _check(costs, schedule), schedule)

    def plan(self, trace: Trace, costs: CommunicationCosts | None, schedule: str) -> schedules.Plan:
        """Returns buckets with the order of their collectives: what the engine gets.

        Args:
            trace: As of `buckets`.
            costs: As of `buckets`.
            schedule: As of `buckets`.

        Raises:
            ValueError: As `buckets`.
        """
        costs = _check(costs, schedule)
        if schedule == "dear":
            return plan_search.search(trace, costs).plan
        buckets = optimal_buckets(trace, costs, schedule)
        return schedules.make_plan(schedule, buckets, trace, costs)


def _check(costs: CommunicationCosts | None, schedule: str) -> CommunicationCosts:
    if costs is None:
        raise ValueError(
            "Planned needs measured costs, and received None. Use FixedSize() until the "
            "network is measured."
        )
    if schedule not in schedules.SCHEDULES:
        raise ValueError(f"`schedule` must be one of {schedules.SCHEDULES}. Received: {schedule!r}")
    return costs
