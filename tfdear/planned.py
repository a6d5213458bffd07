# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The bucket list with the shortest iteration in the model. Imports no TensorFlow."""

import dataclasses

from tfdear import schedules
from tfdear.cost_model import CommunicationCosts, LinearCost
from tfdear.optimal_buckets import optimal_buckets
from tfdear.trace import Trace

__all__ = ["Planned"]


@dataclasses.dataclass(frozen=True)
class Planned:
    """Fuses gradients so that the modelled iteration is as short as it can be.

    Use it when the network's start-up time and the model's layer times are measured: large
    buckets save start-ups, small ones start earlier and free the next forward pass earlier, and
    this planner weighs the two exactly, for the schedule in use.

    Args:
        chunk_bytes: Defaults to None: the buckets are optimal for the ideal queue of "dear", which
            interrupts a transfer at no cost. With a size in bytes, they are the best, under the
            fixed order that `tfdear.schedules.make_plan` makes with this `chunk_bytes`, of a few
            optimal bucket lists, among them the one for "dear_barrier": so the order without the
            barrier is never the slower one. Other schedules are planned alike either way.

    Raises:
        ValueError: `chunk_bytes` is not a positive whole number.

    Example:

    >>> from tfdear import cost_model, fusion
    >>> from tfdear.trace import Layer, Trace
    >>> trace = Trace("two", (Layer("a", 8, 1.0, 2.0), Layer("b", 8, 1.0, 2.0)))
    >>> fusion.Planned().buckets(trace, cost_model.ring(2, alpha=9.0, beta=0.25), "dear")
    [[1, 0]]

    Reference: `docs/fusion.md`; the problem is that of Zhang et al., "DeAR", section IV, and of
    Shi et al., "MG-WFBP", section 3.
    """

    chunk_bytes: int | None = None
    needs_profile = True

    def __post_init__(self) -> None:
        if self.chunk_bytes is not None and (
            not isinstance(self.chunk_bytes, int) or self.chunk_bytes < 1
        ):
            raise ValueError(
                "`chunk_bytes` must be None or a positive number of bytes. "
                f"Received: chunk_bytes={self.chunk_bytes!r}"
            )

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
        if costs is None:
            raise ValueError(
                "Planned needs measured costs, and received None. Use FixedSize() until the "
                "network is measured."
            )
        if schedule not in schedules.SCHEDULES:
            raise ValueError(
                f"`schedule` must be one of {schedules.SCHEDULES}. Received: {schedule!r}"
            )
        if schedule != "dear" or self.chunk_bytes is None:
            return optimal_buckets(trace, costs, schedule)
        # A fixed order pays a start-up for every interruption, so the ideal optimum may have too
        # few buckets; with cheaper start-ups it has more.
        cheaper = dataclasses.replace(
            costs, reduce_scatter=_half(costs.reduce_scatter), all_gather=_half(costs.all_gather)
        )
        candidates = [
            optimal_buckets(trace, costs, "dear"),
            optimal_buckets(trace, costs, "dear_barrier"),
            optimal_buckets(trace, cheaper, "dear"),
        ]
        times = [
            schedules.timeline("dear", buckets, trace, costs, self.chunk_bytes).iteration_time
            for buckets in candidates
        ]
        return candidates[times.index(min(times))]


def _half(cost: LinearCost) -> LinearCost:
    return LinearCost(cost.a / 2, cost.b)
