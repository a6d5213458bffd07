# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What algorithms of collectives cost, from the numbers of a network. No TensorFlow."""

import math

from tfdear.planning.cost_model import CommunicationCosts, LinearCost, check_times


def _check(workers: int, **times: float) -> None:
    if workers < 1:
        raise ValueError(f"`workers` must be at least 1. Received: workers={workers!r}")
    check_times(**times)


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


def recursive_exchange(
    workers: int, alpha: float, beta: float, gamma: float = 0.0
) -> CommunicationCosts:
    """Returns the costs of what this package does among nodes of one worker.

    Use it to predict `DearStrategy` for more workers than were measured: up to 8 exchange directly,
    more of them in a round for each prime factor of their number, and where one of these is above
    7, along a ring.

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
    >>> cost_model.recursive_exchange(workers=12, alpha=1.0, beta=12.0).all_gather
    LinearCost(a=3.0, b=11.0)
    """
    _check(workers, alpha=alpha, beta=beta, gamma=gamma)
    rounds, rest = min(1, workers - 1), 1
    if workers > 8:
        rounds, rest = 0, workers
        for factor in (2, 3, 5, 7):
            while rest % factor == 0:
                rounds, rest = rounds + 1, rest // factor
    return _of_shards(workers, (rounds if rest == 1 else workers - 1) * alpha, beta, gamma)


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
