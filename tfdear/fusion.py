# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Tensor fusion: which gradients travel as one collective. Imports no TensorFlow."""

import dataclasses

__all__ = ["FixedSize"]


@dataclasses.dataclass(frozen=True)
class FixedSize:
    """Fuses neighbouring gradients into buckets of at most a fixed number of bytes.

    Use it to trade start-up latency (large buckets) against overlap (small ones). The engine cuts
    the gradients from the last to the first, as the backward pass yields them; a gradient larger
    than the limit travels alone.

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

    bytes: int = 25 << 20

    def __post_init__(self) -> None:
        if not isinstance(self.bytes, int) or self.bytes < 1:
            raise ValueError(
                f"`bytes` must be a positive number of bytes. Received: bytes={self.bytes!r}"
            )
