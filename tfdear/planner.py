# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a planner of tensor fusion is, and how it is written as text. Imports no TensorFlow."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tfdear import call_text, fusion, schedules
from tfdear.cost_model import CommunicationCosts
from tfdear.trace import Trace

_EVERYTHING = 1 << 62


@runtime_checkable
class Planner(Protocol):
    """Decides which gradients travel as one collective."""

    needs_profile: bool

    def buckets(
        self, trace: Trace, costs: CommunicationCosts | None, schedule: str
    ) -> Sequence[Sequence[int]]:
        """Returns the layers of each bucket, in backward order."""


@runtime_checkable
class SearchingPlanner(Planner, Protocol):
    """A planner that is told the step time of the buckets it named last, and then names others."""

    steps_per_trial: int

    @property
    def done(self) -> bool:
        """Whether it has found its answer."""

    def observe(self, seconds_per_step: float) -> None:
        """Ends a trial of `steps_per_trial` steps."""


def parse(text: str) -> Planner:
    """Reads a planner as it is written in Python.

    Args:
        text: The name of a planner of `tfdear.fusion`, with or without arguments in parentheses:
            "Planned", "FixedSize(4 << 20)", "Bayesian(trials=6)".

    Raises:
        ValueError: There is no such planner, or it does not take these arguments.

    Example:

    >>> from tfdear import planner
    >>> planner.parse("FixedSize(4 << 20)")
    FixedSize(bytes=4194304)
    """
    classes = {name: getattr(fusion, name) for name in fusion.__all__}
    return call_text.parse(
        text, {n: c for n, c in classes.items() if isinstance(c, type)}, "a planner"
    )


def make_plan(
    planner: Planner, schedule: str, trace: Trace, costs: CommunicationCosts | None
) -> schedules.Plan:
    """The plan that the engine gets: the planner's buckets and the schedule's order.

    Those of `Planned` are sought together with the order.

    Args:
        planner: Who cuts the buckets.
        schedule: One of `tfdear.schedules.SCHEDULES`.
        trace: The model.
        costs: The network, or None.
    """
    if isinstance(planner, fusion.Planned):
        return planner.plan(trace, costs, schedule)
    return schedules.make_plan(schedule, planner.buckets(trace, costs, schedule), trace, costs)


def first_bucket_bytes(planner: Planner, compressed: bool) -> int:
    """Largest bucket, in bytes, before anything is measured.

    Args:
        planner: Who cuts the buckets later.
        compressed: Whether gradients are compressed: `Planned` then keeps its first buckets.

    Returns:
        Bytes; 0: a sixteenth of the gradients' bytes, within limits.
    """
    if isinstance(planner, fusion.FixedSize):
        return planner.bytes
    if isinstance(planner, fusion.NoFusion):
        return 1
    if isinstance(planner, fusion.SingleBucket):
        return _EVERYTHING
    if isinstance(planner, fusion.Planned) and compressed:
        return 0
    return fusion.FixedSize().bytes
