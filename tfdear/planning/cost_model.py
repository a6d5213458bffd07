# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a collective costs: `a + b * bytes`, measured or from a formula. Imports no TensorFlow."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class LinearCost:
    """Time of one collective as a function of its size: a start-up and a time per byte.

    Use it for one collective on one class of links. `bytes` is always the size of the whole
    bucket, also for a reduce-scatter or an all-gather, whose ranks each keep or give a shard of it.

    Args:
        a: Start-up time, in seconds.
        b: Time per byte, in seconds.

    Raises:
        ValueError: A value is negative or not finite.

    Example:

    >>> from tfdear.cost_model import LinearCost
    >>> LinearCost(a=1.0, b=0.5).seconds(4)
    3.0

    Reference: Shi et al., "MG-WFBP", section 2.5, equation 10.
    """

    a: float
    b: float

    def __post_init__(self) -> None:
        check_times(a=self.a, b=self.b)

    def __add__(self, other: "LinearCost") -> "LinearCost":
        """Returns the cost of one collective after the other."""
        return LinearCost(self.a + other.a, self.b + other.b)

    def seconds(self, bytes: float) -> float:
        """Returns the time of a collective over a bucket of `bytes` bytes, in seconds."""
        return self.a + self.b * bytes


@dataclasses.dataclass(frozen=True)
class CommunicationCosts:
    """The costs of the three collectives that schedules are made of.

    Use it as the `costs` of planners and schedules: from `fit` for a network at hand, from `ring`
    and the other algorithms for one that is only described.

    Args:
        reduce_scatter: Cost of a reduce-scatter (with trees: of the reduce half).
        all_gather: Cost of an all-gather (with trees: of the broadcast half).
        all_reduce: Cost of an all-reduce.

    Example:

    >>> from tfdear import cost_model
    >>> costs = cost_model.ring(workers=4, alpha=1e-5, beta=1e-9, gamma=0.0)
    >>> round(costs.all_reduce.a / costs.reduce_scatter.a, 6)
    2.0
    """

    reduce_scatter: LinearCost
    all_gather: LinearCost
    all_reduce: LinearCost


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> LinearCost:
    """Fits a start-up and a time per byte to measured times.

    Use it at start-up, per collective and per class of links, on the medians of a few sizes.
    The squares of the relative errors are minimised: with absolute ones the largest size alone
    would decide, and the start-up would be lost in its noise.

    Args:
        sizes: Sizes of the collectives, in bytes; at least two different ones.
        seconds: Their times, in seconds, all positive.

    Returns:
        A `LinearCost` with `a >= 0` and `b > 0`.

    Raises:
        ValueError: The sizes do not determine a line, a time is not positive, or the times do not
            grow with size.

    Example:

    >>> from tfdear import cost_model
    >>> cost = cost_model.fit([0, 1000, 2000], [1.0, 2.0, 3.0])
    >>> round(cost.a, 6), round(cost.b, 6)
    (1.0, 0.001)

    Reference: Shi et al., "MG-WFBP", sections 2.5 and 6.2.
    """
    x = np.asarray(sizes, dtype=float)
    y = np.asarray(seconds, dtype=float)
    if x.ndim != 1 or x.shape != y.shape or len(np.unique(x)) < 2:
        raise ValueError(
            "A fit needs one time per size and at least two different sizes. "
            f"Received: sizes={list(sizes)!r}, seconds={list(seconds)!r}"
        )
    if not (np.all(np.isfinite(x)) and np.all(np.isfinite(y)) and x.min() >= 0 and y.min() > 0):
        raise ValueError(
            "A fit needs sizes of zero or more bytes and positive times. "
            f"Received: sizes={list(sizes)!r}, seconds={list(seconds)!r}"
        )
    # Weighted normal equations of y = a + b x with weights 1 / y^2, about the weighted mean.
    weights = 1.0 / y**2
    weights /= weights.sum()
    mean_x, mean_y = weights @ x, weights @ y
    b = float(weights @ ((x - mean_x) * (y - mean_y)) / (weights @ (x - mean_x) ** 2))
    a = float(mean_y - b * mean_x)
    if a < 0:  # The best line with a >= 0 goes through the origin.
        a, b = 0.0, float((weights @ (x * y)) / (weights @ x**2))
    if b <= 0:
        raise ValueError(
            "The times do not grow with size, so they give no time per byte; measure larger sizes "
            f"or more of them. Received: sizes={list(sizes)!r}, seconds={list(seconds)!r}"
        )
    return LinearCost(a, b)


def check_times(**times: float) -> None:
    """Raises ValueError if one of them is no time in seconds."""
    for name, value in times.items():
        if not 0 <= value < math.inf:
            raise ValueError(
                f"`{name}` must be a time in seconds, zero or more. Received: {name}={value!r}"
            )
