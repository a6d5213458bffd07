# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Planners that look only at the sizes of gradients. Imports no TensorFlow."""

import dataclasses

from tfdear.fusion.planner import DEFAULT_BUCKET_BYTES
from tfdear.planning.cost_model import CommunicationCosts
from tfdear.planning.trace import Trace

_EVERYTHING = 1 << 62


@dataclasses.dataclass(frozen=True)
class FixedSize:
    """Fuses neighbouring gradients into buckets of at most a fixed number of bytes.

    Use it to trade start-up latency (large buckets) against overlap (small ones). Buckets are
    filled from the last gradient to the first, in the order of the backward pass; a gradient larger
    than the limit is sent alone.

    Args:
        bytes: Largest bucket, in bytes. Defaults to 25 MiB.

    Raises:
        ValueError: `bytes` is not a positive whole number.

    Example:

    >>> import tfdear
    >>> tfdear.fusion.FixedSize(4 << 20).bytes
    4194304

    Reference: Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3.
    """

    bytes: int = DEFAULT_BUCKET_BYTES
    needs_profile = False
    keeps_first_buckets = True

    def first_bucket_bytes(self, compressed: bool) -> int:
        """Returns `bytes`."""
        return self.bytes

    def __post_init__(self) -> None:
        if not isinstance(self.bytes, int) or self.bytes < 1:
            raise ValueError(
                f"`bytes` must be a positive number of bytes. Received: bytes={self.bytes!r}"
            )

    def buckets(
        self, trace: Trace, costs: CommunicationCosts | None, schedule: str
    ) -> list[list[int]]:
        """Returns the buckets in backward order; costs and schedule do not matter."""
        buckets: list[list[int]] = []
        room = 0
        for index in reversed(range(len(trace.layers))):
            size = trace.layers[index].bytes
            if buckets and size <= room:
                buckets[-1].append(index)
                room -= size
            else:
                buckets.append([index])
                room = self.bytes - size
        return buckets


@dataclasses.dataclass(frozen=True)
class FixedCount:
    """Fuses a fixed number of neighbouring gradients.

    Use it as a baseline; it suits models whose gradients are alike in size.

    Args:
        count: Gradients per bucket. The last bucket, at the front of the model, may hold fewer.

    Raises:
        ValueError: `count` is not a positive whole number.

    Example:

    >>> from tfdear import fusion
    >>> from tfdear.trace import Layer, Trace
    >>> trace = Trace("three", (Layer("a", 8, 0, 0), Layer("b", 8, 0, 0), Layer("c", 8, 0, 0)))
    >>> fusion.FixedCount(2).buckets(trace, None, "dear")
    [[2, 1], [0]]

    Reference: Zhang et al., "DeAR", section VI-F, there called DeAR-NL.
    """

    count: int
    needs_profile = False

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 1:
            raise ValueError(
                f"`count` must be a positive number of gradients. Received: count={self.count!r}"
            )

    def buckets(
        self, trace: Trace, costs: CommunicationCosts | None, schedule: str
    ) -> list[list[int]]:
        """Returns the buckets in backward order; costs and schedule do not matter."""
        layers = list(reversed(range(len(trace.layers))))
        return [layers[start : start + self.count] for start in range(0, len(layers), self.count)]


@dataclasses.dataclass(frozen=True)
class NoFusion:
    """Sends every gradient alone.

    Use it as a baseline, or where a collective's start-up costs nothing.

    Example:

    >>> from tfdear import fusion
    >>> from tfdear.trace import Layer, Trace
    >>> trace = Trace("two", (Layer("a", 8, 0, 0), Layer("b", 8, 0, 0)))
    >>> fusion.NoFusion().buckets(trace, None, "dear")
    [[1], [0]]

    Reference: Shi et al., "MG-WFBP", section 2.3 (plain wait-free backpropagation).
    """

    needs_profile = False
    keeps_first_buckets = True

    def first_bucket_bytes(self, compressed: bool) -> int:
        """Returns 1: every gradient is a bucket."""
        return 1

    def buckets(
        self, trace: Trace, costs: CommunicationCosts | None, schedule: str
    ) -> list[list[int]]:
        """Returns the buckets in backward order; costs and schedule do not matter."""
        return [[index] for index in reversed(range(len(trace.layers)))]


@dataclasses.dataclass(frozen=True)
class SingleBucket:
    """Sends all gradients at once: SyncEASGD, with all-reduces.

    Use it as a baseline, or where a collective's start-up exceeds the time of the backward pass.
    Its other name, `SyncEASGD`, is that of the papers for `schedule="sequential"` (or "wfbp",
    which is the same with one bucket) and this planner.

    Example:

    >>> from tfdear import fusion
    >>> from tfdear.trace import Layer, Trace
    >>> trace = Trace("two", (Layer("a", 8, 0, 0), Layer("b", 8, 0, 0)))
    >>> fusion.SingleBucket().buckets(trace, None, "dear")
    [[1, 0]]

    Reference: Shi et al., "MG-WFBP", section 2.4.
    """

    needs_profile = False
    keeps_first_buckets = True

    def first_bucket_bytes(self, compressed: bool) -> int:
        """Returns more than any model has."""
        return _EVERYTHING

    def buckets(
        self, trace: Trace, costs: CommunicationCosts | None, schedule: str
    ) -> list[list[int]]:
        """Returns the buckets in backward order; costs and schedule do not matter."""
        return [list(reversed(range(len(trace.layers))))]
