# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a planner of tensor fusion is. Imports no TensorFlow."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from tfdear.planning import schedules
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.trace import Trace

DEFAULT_BUCKET_BYTES = 25 << 20
# From the paths of variables and the sizes of their gradients, in the order of the forward pass.
FindBlocks = Callable[[Sequence[str], Sequence[int]], list[list[int]]]


@runtime_checkable
class Planner(Protocol):
    """Decides which gradients travel as one collective.

    In addition to these members, a planner may have

    - `plan(trace, costs, schedule)`: buckets with the order of their collectives, where both are
      searched for together (`make_plan`);
    - `first_bucket_bytes(compressed)`: the largest bucket, in bytes, before anything is measured;
      0: a sixteenth of the gradients' bytes, within limits (default: 25 MiB);
    - `keeps_first_buckets`: True if with compression the buckets of the first plan stay, which are
      the same in all runs, and only their order follows from measurements. What is selected depends
      on the buckets: those made from measured times give other weights in every run (default:
      False);
    - `blocks`: a `Blocks` that finds, before anything is measured, gradients that always share a
      bucket; `buckets` gets a trace in which they are neighbors (default: None).
    """

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


def seeks_order(planner: Planner) -> bool:
    """Whether a planner searches for buckets and the order of their collectives together."""
    return hasattr(planner, "plan")


def find_blocks(planner: Planner) -> FindBlocks | None:
    """Finds gradients that always share a bucket, if buckets consist of such, as `Planner` says."""
    blocks = getattr(planner, "blocks", None)
    return None if blocks is None else blocks.find


def make_plan(
    planner: Planner, schedule: str, trace: Trace, costs: CommunicationCosts | None
) -> schedules.Plan:
    """The plan that the engine gets: the planner's buckets and the schedule's order."""
    if seeks_order(planner):
        return planner.plan(trace, costs, schedule)  # type: ignore[attr-defined]
    return schedules.make_plan(schedule, planner.buckets(trace, costs, schedule), trace, costs)


def first_bucket_bytes(planner: Planner, compressed: bool) -> int:
    """The largest bucket before anything is measured, as `Planner` says."""
    own = getattr(planner, "first_bucket_bytes", None)
    return DEFAULT_BUCKET_BYTES if own is None else own(compressed)


def keeps_first_buckets(planner: Planner) -> bool:
    """Whether the buckets of the first plan stay with compression, as `Planner` says."""
    return getattr(planner, "keeps_first_buckets", False)
