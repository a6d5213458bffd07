# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The least time of a training step when computation and communication overlap. No TensorFlow."""

import dataclasses
from collections.abc import Mapping, Sequence

from tfdear.base.names import STEP_KINDS, Operation, WireFormat
from tfdear.planning.cost_model import CommunicationCosts


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a step takes at least when computation and communication overlap ideally.

    Use it to see how far a schedule is from the best that it could do.

    Args:
        forward: Seconds of the forward pass.
        backward: Seconds of the backward pass.
        reduce_scatter: Seconds of all reduce-scatters of a step.
        all_gather: Seconds of all all-gathers of a step.
        all_reduce: Seconds of all all-reduces of a step, where a schedule uses those.

    Example:

    >>> from tfdear.planning.bounds import Bounds
    >>> bounds = Bounds(forward=1, backward=2, reduce_scatter=2, all_gather=2, all_reduce=4)
    >>> bounds.dear, bounds.dear_barrier, bounds.all_reduce_overlap
    (4, 4, 5)

    Reference: Zhang et al., "DeAR", section VI-E and VI-I, equations 6 to 8.
    """

    forward: float
    backward: float
    reduce_scatter: float
    all_gather: float
    all_reduce: float

    @property
    def dear(self) -> float:
        """Without a barrier: the link and the processor are never both idle."""
        return max(self.forward + self.backward, self.reduce_scatter + self.all_gather)

    @property
    def dear_barrier(self) -> float:
        """The published DeAR, equation 7."""
        return max(self.forward, self.all_gather) + max(self.backward, self.reduce_scatter)

    @property
    def all_reduce_overlap(self) -> float:
        """All-reduce under the backward pass only, equation 8."""
        return self.forward + max(self.backward, self.all_reduce)

    @property
    def sequential(self) -> float:
        """No overlap at all."""
        return self.forward + self.backward + self.all_reduce

    def of(self, schedule: str) -> float:
        """The bound of a schedule by its name."""
        return {
            "dear": self.dear,
            "dear_barrier": self.dear_barrier,
            "wfbp": self.all_reduce_overlap,
            "sequential": self.sequential,
            # Its all-reduces may reach into the next forward pass.
            "bytescheduler": max(self.forward + self.backward, self.all_reduce),
        }[schedule]

    def speedup(self, world_size: int) -> float:
        """The largest speedup over one rank, equation 6."""
        computation = self.forward + self.backward
        hidden = min(self.reduce_scatter, self.backward) + min(self.all_gather, self.forward)
        return (
            world_size
            * computation
            / (computation + self.reduce_scatter + self.all_gather - hidden)
        )


def of_costs(
    forward: float, backward: float, bucket_bytes: Sequence[int], costs: CommunicationCosts
) -> Bounds:
    """Bounds from passes and from what a model says of communication.

    Args:
        forward: Seconds of the forward pass.
        backward: Seconds of the backward pass.
        bucket_bytes: Sizes of the buckets in bytes.
        costs: What collectives cost.
    """
    reduce_scatter, all_gather, all_reduce = (
        sum(cost.seconds(size) for size in bucket_bytes)
        for cost in (costs.reduce_scatter, costs.all_gather, costs.all_reduce)
    )
    return Bounds(forward, backward, reduce_scatter, all_gather, all_reduce)


def make_bounds(
    steps: Mapping, bucket_bytes: Sequence[int], costs: CommunicationCosts | None
) -> Bounds:
    """Bounds from measured passes, and from modelled communication or else measured.

    Args:
        steps: What `tfdear.measure.steps.average` returned.
        bucket_bytes: Sizes of the buckets in bytes.
        costs: Fitted costs of collectives. None: what the steps measured, which includes waiting
            for other ranks; a half that did not run counts as half an all-reduce.
    """
    forward, backward = steps["typical_forward"], steps["typical_backward"]
    if costs is not None:
        return of_costs(forward, backward, bucket_bytes, costs)
    first, second, whole = (
        sum(
            steps.get(kind.name, 0.0)
            for kind in STEP_KINDS
            if kind.operation in operations and kind.wire_format == WireFormat.DENSE
        )
        for operations in (
            (Operation.REDUCE_SCATTER, Operation.REDUCE),
            (Operation.ALL_GATHER, Operation.BROADCAST),
            (Operation.ALL_REDUCE,),
        )
    )
    return Bounds(
        forward=forward,
        backward=backward,
        reduce_scatter=first + whole / 2,
        all_gather=second + whole / 2,
        all_reduce=first + second + whole,
    )
