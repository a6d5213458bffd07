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
        _check_times(a=self.a, b=self.b)

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


def _check_times(**times: float) -> None:
    for name, value in times.items():
        if not 0 <= value < math.inf:
            raise ValueError(
                f"`{name}` must be a time in seconds, zero or more. Received: {name}={value!r}"
            )


def _check(workers: int, **times: float) -> None:
    if workers < 1:
        raise ValueError(f"`workers` must be at least 1. Received: workers={workers!r}")
    _check_times(**times)


def _sum_of_halves(reduce_scatter: LinearCost, all_gather: LinearCost) -> CommunicationCosts:
    return CommunicationCosts(reduce_scatter, all_gather, reduce_scatter + all_gather)


def _of_shards(workers: int, startup: float, beta: float, gamma: float) -> CommunicationCosts:
    """Each worker sends and gets all shards but one: the least that algorithms move."""
    share = (workers - 1) / workers
    scatter = LinearCost(startup, share * (beta + gamma))
    return _sum_of_halves(scatter, LinearCost(startup, share * beta))


def levels(
    inner: CommunicationCosts | None, outer: CommunicationCosts | None, inner_workers: int
) -> CommunicationCosts:
    """Returns the costs of collectives that work in two levels, from those of each level.

    Use it where the levels were measured: the shards that the inner level leaves travel in the
    outer one.

    Args:
        inner: Costs among the workers of a node. None: there is one worker per node.
        outer: Costs among the workers of the same number on all nodes, as measured while the
            workers of the other numbers do the same. None: there is one node.
        inner_workers: Workers of a node.

    Returns:
        Its `CommunicationCosts`; an all-reduce is made of both halves in both levels.

    Raises:
        ValueError: There is no level.

    Example:

    >>> from tfdear import cost_model
    >>> inner = cost_model.ring(workers=4, alpha=1.0, beta=4.0)
    >>> outer = cost_model.ring(workers=2, alpha=3.0, beta=8.0)
    >>> cost_model.levels(inner, outer, 4).all_gather
    LinearCost(a=6.0, b=4.0)

    Reference: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud
    Clusters", section on hierarchical aggregation.
    """
    if inner is None and outer is None:
        raise ValueError("Costs of at least one level are needed. Received: None for both")
    scatter = gather = LinearCost(0.0, 0.0)
    for costs, share in ((inner, 1.0), (outer, 1.0 / inner_workers)):
        if costs is not None:
            scatter += LinearCost(costs.reduce_scatter.a, share * costs.reduce_scatter.b)
            gather += LinearCost(costs.all_gather.a, share * costs.all_gather.b)
    return _sum_of_halves(scatter, gather)


def ring(workers: int, alpha: float, beta: float, gamma: float = 0.0) -> CommunicationCosts:
    """Returns the costs of the ring algorithm.

    Use it for small and medium clusters: no algorithm moves fewer bytes, but the start-up grows
    with the number of workers.

    Args:
        workers: Number of workers.
        alpha: Latency of one message, in seconds.
        beta: Time per byte between two neighbours, in seconds.
        gamma: Time to add one byte to another, in seconds. Defaults to 0.

    Returns:
        Its `CommunicationCosts`.

    Raises:
        ValueError: An argument is out of range.

    Example:

    >>> from tfdear import cost_model
    >>> cost_model.ring(workers=4, alpha=1.0, beta=4.0).all_gather
    LinearCost(a=3.0, b=3.0)

    Reference: Zhang et al., "DeAR", equations 3 to 5; Shi et al., "MG-WFBP", Table II.
    """
    _check(workers, alpha=alpha, beta=beta, gamma=gamma)
    return _of_shards(workers, (workers - 1) * alpha, beta, gamma)


def recursive_halving(
    workers: int, alpha: float, beta: float, gamma: float = 0.0
) -> CommunicationCosts:
    """Returns the costs of recursive halving (reduce-scatter) and doubling (all-gather).

    Use it for clusters whose every pair of workers has the full bandwidth; the number of workers
    should be a power of two.

    Args:
        workers: Number of workers.
        alpha: Latency of one message, in seconds.
        beta: Time per byte between two workers, in seconds.
        gamma: Time to add one byte to another, in seconds. Defaults to 0.

    Returns:
        Its `CommunicationCosts`.

    Raises:
        ValueError: An argument is out of range.

    Example:

    >>> from tfdear import cost_model
    >>> cost_model.recursive_halving(workers=4, alpha=1.0, beta=4.0).all_gather
    LinearCost(a=2.0, b=3.0)

    Reference: Shi et al., "MG-WFBP", Table II.
    """
    _check(workers, alpha=alpha, beta=beta, gamma=gamma)
    return _of_shards(workers, math.log2(workers) * alpha, beta, gamma)


def double_binary_trees(
    workers: int, alpha: float, beta: float, gamma: float = 0.0
) -> CommunicationCosts:
    """Returns the costs of double binary trees.

    Use it for very large clusters: the start-up grows with the logarithm of the number of workers
    only. The table gives the all-reduce; its two halves, a reduce and a broadcast, are taken to
    share its start-up and its time per byte evenly, so that cutting it in two costs nothing.

    Args:
        workers: Number of workers.
        alpha: Latency of one message, in seconds.
        beta: Time per byte between two workers, in seconds.
        gamma: Time to add one byte to another, in seconds. Defaults to 0.

    Returns:
        Its `CommunicationCosts`.

    Raises:
        ValueError: An argument is out of range.

    Example:

    >>> from tfdear import cost_model
    >>> cost_model.double_binary_trees(workers=8, alpha=1.0, beta=4.0).all_reduce
    LinearCost(a=6.0, b=4.0)

    Reference: Shi et al., "MG-WFBP", Table II (its start-up is printed without the latency).
    """
    _check(workers, alpha=alpha, beta=beta, gamma=gamma)
    if workers == 1:
        return _sum_of_halves(LinearCost(0.0, 0.0), LinearCost(0.0, 0.0))
    startup = math.log2(workers) * alpha
    return _sum_of_halves(LinearCost(startup, beta / 2 + gamma), LinearCost(startup, beta / 2))


def hierarchical(
    nodes: int,
    workers_per_node: int,
    *,
    alpha: float,
    beta: float,
    intra_node_alpha: float,
    intra_node_beta: float,
    gamma: float = 0.0,
) -> CommunicationCosts:
    """Returns the costs of rings inside every node, then across the nodes.

    Use it for clusters of nodes with several workers and a faster link inside. Every worker keeps
    1 / `workers_per_node` of the bucket after the inner reduce-scatter; the rings across nodes
    run side by side and share the node's link.

    Args:
        nodes: Number of nodes.
        workers_per_node: Workers on each node.
        alpha: Latency of one message between nodes, in seconds.
        beta: Time per byte on a node's link to the others, in seconds.
        intra_node_alpha: Latency of one message inside a node, in seconds.
        intra_node_beta: Time per byte between two workers of a node, in seconds.
        gamma: Time to add one byte to another, in seconds. Defaults to 0.

    Returns:
        Its `CommunicationCosts`.

    Raises:
        ValueError: An argument is out of range.

    Example:

    >>> from tfdear import cost_model
    >>> cost_model.hierarchical(
    ...     2, 4, alpha=1.0, beta=4.0, intra_node_alpha=0.5, intra_node_beta=1.0
    ... ).all_gather
    LinearCost(a=2.5, b=2.75)

    Reference: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud
    Clusters", section on hierarchical aggregation.
    """
    inner = ring(workers_per_node, intra_node_alpha, intra_node_beta, gamma)
    # The rings across nodes run at the same time over one link, so each has a share of it.
    outer = ring(nodes, alpha, workers_per_node * beta, gamma)
    return levels(inner, outer, workers_per_node)


def pairwise(workers: int, alpha: float, beta: float) -> LinearCost:
    """Returns the cost of an all-to-all in which every worker sends to each of the others.

    Use it for exchanges of rows of embeddings. Unlike those of the other collectives its `bytes`
    are what the busiest worker sends to the others, or gets from them if that is more: what each
    of them gets is not always the same.

    Args:
        workers: Number of workers.
        alpha: Latency of one message, in seconds.
        beta: Time per byte on a worker's link, in seconds.

    Returns:
        Its `LinearCost`.

    Raises:
        ValueError: An argument is out of range.

    Example:

    >>> from tfdear import cost_model
    >>> cost_model.pairwise(workers=4, alpha=1.0, beta=4.0)
    LinearCost(a=3.0, b=4.0)

    Reference: Li et al., "EmbRace", section 4.1.2 and Table 2.
    """
    _check(workers, alpha=alpha, beta=beta)
    return LinearCost((workers - 1) * alpha, beta)
