# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The least time of a training step when computation and communication overlap. No TensorFlow."""

import dataclasses
from collections.abc import Mapping, Sequence

from tfdear.base.names import STEP_KINDS, Operation, WireFormat
from tfdear.planning.cost_model import CommunicationCosts


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a step takes at least when computation and communication overlap ideally.

    It is made of the seconds of the passes and of all collectives of a kind in a step.

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
        step = computation + self.reduce_scatter + self.all_gather - hidden
        return world_size * computation / step


def of_costs(
    forward: float, backward: float, bucket_bytes: Sequence[int], costs: CommunicationCosts
) -> Bounds:
    """Bounds from the seconds of the passes and from what a model says of communication."""
    reduce_scatter, all_gather, all_reduce = (
        sum(cost.seconds(size) for size in bucket_bytes)
        for cost in (costs.reduce_scatter, costs.all_gather, costs.all_reduce)
    )
    return Bounds(forward, backward, reduce_scatter, all_gather, all_reduce)


def make_bounds(
    steps: Mapping, bucket_bytes: Sequence[int], costs: CommunicationCosts | None
) -> Bounds:
    """Bounds from measured passes, which `tfdear.measure.steps.average` returned.

    Communication is modelled; without costs it is measured too, which includes waiting for other
    ranks. A half that did not run then counts as half an all-reduce.
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
