# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A described network: what collectives cost among any number of workers. No TensorFlow."""

import dataclasses

from tfdear.planning import network_costs, table_schedules
from tfdear.planning.cost_model import CommunicationCosts, LinearCost
from tfdear.planning.embedding_costs import ExchangeCosts

NETWORKS = (
    "ring",
    "recursive_halving",
    "recursive_exchange",
    "double_binary_trees",
    "hierarchical",
)


@dataclasses.dataclass(frozen=True)
class Network:
    """How the time of a collective follows from the number of workers.

    Use it to describe a cluster to `simulate`.

    Args:
        algorithm: One of `NETWORKS`. Defaults to "ring".
        alpha: Latency of one message, in seconds. Its default and that of `beta` are 10 Gbit/s
            Ethernet as MG-WFBP measured it (Figure 4a, an all-reduce of 8 nodes).
        beta: Time per byte between two workers, in seconds.
        gamma: Time to add one byte to another, in seconds. Defaults to 0.
        workers_per_node: Workers that share a node, for "hierarchical". Defaults to 4.
        intra_node_alpha: Latency of a message inside a node, in seconds. Defaults to 5e-6.
        intra_node_beta: Time per byte inside a node, in seconds. Defaults to 1e-10 (10 GB/s).

    Raises:
        ValueError: The algorithm is unknown or a number is out of range.

    Example:

    >>> from tfdear.simulator import Network
    >>> Network("ring", alpha=1.0, beta=4.0).costs(4).all_gather
    LinearCost(a=3.0, b=3.0)

    Reference: Shi et al., "MG-WFBP", Table II; Zhang et al., "DeAR", equations 3 to 5.
    """

    algorithm: str = "ring"
    alpha: float = 9.72e-4 / 14
    beta: float = 1.97e-9 * 8 / 14
    gamma: float = 0.0
    workers_per_node: int = 4
    intra_node_alpha: float = 5e-6
    intra_node_beta: float = 1e-10

    def __post_init__(self) -> None:
        if self.algorithm not in NETWORKS:
            raise ValueError(
                f"`algorithm` must be one of {', '.join(NETWORKS)}. Received: {self.algorithm!r}"
            )
        if self.workers_per_node < 1:
            raise ValueError(
                f"`workers_per_node` must be at least 1. Received: {self.workers_per_node!r}"
            )
        self.costs(self.workers_per_node)  # Checks the other numbers.

    def costs(self, workers: int) -> CommunicationCosts:
        """Returns the costs of the collectives among `workers` workers.

        Raises:
            ValueError: The workers do not fill whole nodes of a hierarchical network.
        """
        if self.algorithm != "hierarchical":
            function = getattr(network_costs, self.algorithm)
            return function(workers, self.alpha, self.beta, self.gamma)
        nodes, rest = divmod(workers, self.workers_per_node)
        if rest:
            raise ValueError(
                f"{workers} workers do not fill nodes of {self.workers_per_node}; choose a "
                "multiple, or other `workers_per_node`."
            )
        return network_costs.hierarchical(
            nodes,
            self.workers_per_node,
            alpha=self.alpha,
            beta=self.beta,
            intra_node_alpha=self.intra_node_alpha,
            intra_node_beta=self.intra_node_beta,
            gamma=self.gamma,
        )

    def cluster(
        self, workers: int, kind: str = "auto", value_bytes: int = 4, ids_known: bool = False
    ) -> table_schedules.Cluster:
        """Returns what exchanges of tables among `workers` workers cost.

        Args:
            workers: Number of workers.
            kind: How tables are divided: "column", "row" or "auto". Defaults to "auto".
            value_bytes: Bytes of a value of a vector. Defaults to 4.
            ids_known: Whether ranks with shards know the ids of all anyway. Defaults to False.
        """
        exchange = network_costs.pairwise(workers, self.alpha, self.beta)
        if self.algorithm == "hierarchical":
            # Each worker of a node sends most of its rows over the link that they share.
            inside = min(self.workers_per_node, workers) - 1
            outside = workers - 1 - inside
            part = outside / (workers - 1) if workers > 1 else 0.0
            exchange = LinearCost(
                inside * self.intra_node_alpha + outside * self.alpha,
                (1 - part) * self.intra_node_beta + part * self.workers_per_node * self.beta,
            )
        # Slices go to different servers; those that a worker's own server has stay where they are.
        slices = LinearCost(2 * self.alpha, 2 * exchange.b * (workers - 1) / workers)
        costs = ExchangeCosts(self.costs(workers), exchange)
        return table_schedules.Cluster(workers, costs, slices, kind, value_bytes, ids_known)
