# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The plan that a layout starts with, before anything is measured. Imports no TensorFlow."""

import dataclasses
from collections.abc import Callable, Sequence

from tfdear.base.names import Lane
from tfdear.engine import plan as engine_plan
from tfdear.planning import schedules

# Where a tensor begins in a bucket is a multiple of it: kSlotAlignment in `fusion_buffer.h`.
_SLOT_BYTES = 64
# Of a bucket, where nobody says how large: with fewer, little is left to overlap; with more, or
# smaller ones, start-ups weigh more than what they save.
_USUAL_BUCKETS = 16
_LEAST_BYTES, _MOST_BYTES = 64 << 10, 25 << 20


@dataclasses.dataclass(frozen=True)
class FirstPlan:
    """Makes the first plan of every layout: a function of its tensors, so all ranks make the same.

    `bucket_bytes` is the largest bucket; a larger tensor travels alone. 0: a sixteenth of the
    tensors' bytes, within limits, so that there are several buckets of any model. `find_blocks`
    makes the buckets of gradients instead, from paths of variables and bytes; None: nothing does.
    """

    schedule: str  # One of `tfdear.base.names.SCHEDULES`.
    bucket_bytes: int
    plan_format: engine_plan.PlanFormat  # Of gradients.
    find_blocks: Callable[[Sequence[str], Sequence[int]], list[list[int]]] | None = None

    def encode(
        self,
        tensors: Sequence[engine_plan.TensorSpec],
        lane: Lane,
        paths: Sequence[str] | None = None,
    ) -> list[int]:
        """The plan of a layout with these tensors, as the engine takes it.

        `paths` are those of the variables whose gradients the tensors are, if they are known.
        """
        if self.find_blocks is not None and paths is not None:
            blocks = self.find_blocks(paths, [tensor.bytes for tensor in tensors])
            buckets = in_blocks(tensors, blocks)
        else:
            buckets = cut(tensors, self.bucket_bytes or _usual_bucket_bytes(tensors))
        schedule, plan_format = self.schedule, self.plan_format
        if lane is not Lane.GRADIENTS:
            # Somebody waits for these sums: nothing can be put off.
            schedule, plan_format = "wfbp", engine_plan.PlanFormat()
        numbers = range(len(buckets))
        # The next forward pass reads the first variables first.
        forward = sorted(numbers, key=lambda number: min(buckets[number]))
        plan = schedules.Plan(
            buckets=tuple((number,) for number in numbers),
            steps=tuple(schedules.plain_steps(schedule, forward)),
            wait_for_all=schedule == "sequential",
        )
        return engine_plan.encode_over_buckets(plan, buckets, numbers, tensors, plan_format)


def cut(tensors: Sequence[engine_plan.TensorSpec], bucket_bytes: int) -> list[list[int]]:
    """Cuts tensors into buckets of one data type each and at most so many bytes, with their gaps.

    From the last tensor to the first, because the backward pass yields gradients in that order.
    """
    buckets: list[list[int]] = []
    # By data type: the bucket that still takes tensors, and the bytes in it.
    filling: dict[int, tuple[list[int], int]] = {}
    for number in reversed(range(len(tensors))):
        tensor = tensors[number]
        slot = -(-tensor.bytes // _SLOT_BYTES) * _SLOT_BYTES
        bucket, used = filling.get(tensor.data_type, ([], 0))
        if tensor.alone or not bucket or used + slot > bucket_bytes:
            bucket, used = [], 0
            buckets.append(bucket)
        bucket.append(number)
        if not tensor.alone:
            filling[tensor.data_type] = bucket, used + slot
    return buckets


def in_blocks(
    tensors: Sequence[engine_plan.TensorSpec], blocks: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Makes a bucket of each block, or several, of one data type each.

    In the order in which the backward pass is done with blocks: with the first of its tensors.
    """
    ordered = sorted((sorted(block, reverse=True) for block in blocks), key=min, reverse=True)
    return [part for block in ordered for part in engine_plan.parts(block, tensors)]


def _usual_bucket_bytes(tensors: Sequence[engine_plan.TensorSpec]) -> int:
    total = sum(tensor.bytes for tensor in tensors if not tensor.alone)
    return min(max(total // _USUAL_BUCKETS, _LEAST_BYTES), _MOST_BYTES)
