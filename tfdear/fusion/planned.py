# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The bucket list with the shortest iteration in the model. Imports no TensorFlow."""

import dataclasses
from collections.abc import Sequence

from tfdear.fusion.blocks import Blocks, merged
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

    Args:
        blocks: Gradients that are to share a bucket whatever the times, as in `Planned(Blocks())`:
            buckets are then of whole blocks, of one or several neighbours. Defaults to None: no
            gradients need to.

    Raises:
        ValueError: `blocks` is no `Blocks`.

    Example:

    >>> from tfdear import cost_model, fusion
    >>> from tfdear.trace import Layer, Trace
    >>> trace = Trace("two", (Layer("a", 8, 1.0, 2.0), Layer("b", 8, 1.0, 2.0)))
    >>> fusion.Planned().buckets(trace, cost_model.ring(2, alpha=9.0, beta=0.25), "dear")
    [[1, 0]]

    Reference: `docs/fusion.md`; the problem is that of Zhang et al., "DeAR", section IV, and of
    Shi et al., "MG-WFBP", section 3.
    """

    blocks: Blocks | None = None
    needs_profile = True
    keeps_first_buckets = True

    def __post_init__(self) -> None:
        if self.blocks is not None and not isinstance(self.blocks, Blocks):
            raise ValueError(
                f"`blocks` must be None or tfdear.fusion.Blocks(). Received: blocks={self.blocks!r}"
            )

    def __repr__(self) -> str:
        return "Planned()" if self.blocks is None else f"Planned({self.blocks!r})"

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
        costs = _check(costs, schedule)
        if self.blocks is None:
            return optimal_buckets(trace, costs, schedule)
        parts = self.blocks.buckets(trace, costs, schedule)
        return _whole(optimal_buckets(merged(trace, parts), costs, schedule), parts)

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
        if self.blocks is not None:
            parts = self.blocks.buckets(trace, costs, schedule)
            plan = Planned().plan(merged(trace, parts), costs, schedule)
            buckets = tuple(tuple(bucket) for bucket in _whole(plan.buckets, parts))
            return dataclasses.replace(plan, buckets=buckets)
        if schedule == "dear":
            return plan_search.search(trace, costs).plan
        return schedules.make_plan(schedule, self.buckets(trace, costs, schedule), trace, costs)


def _whole(buckets: Sequence[Sequence[int]], parts: list[list[int]]) -> list[list[int]]:
    """Buckets of layers of which each was one part of another trace, as layers of that one."""
    last = len(parts) - 1
    return [[index for layer in bucket for index in parts[last - layer]] for bucket in buckets]


def _check(costs: CommunicationCosts | None, schedule: str) -> CommunicationCosts:
    if costs is None:
        raise ValueError(
            "Planned needs measured costs, and received None. Use FixedSize() until the "
            "network is measured."
        )
    if schedule not in schedules.SCHEDULES:
        raise ValueError(f"`schedule` must be one of {schedules.SCHEDULES}. Received: {schedule!r}")
    return costs
