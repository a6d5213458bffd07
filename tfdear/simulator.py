# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Schedules and planners, simulated on clusters that are not at hand. Imports no TensorFlow.

It runs the planners' own code on the simulated timelines of `tfdear.schedules`.
"""

import copy
import dataclasses
import importlib.resources
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tfdear.fusion.planner import SearchingPlanner
from tfdear.planning import bounds as bounds_module
from tfdear.planning import cost_model, schedules
from tfdear.planning.trace import Trace

__all__ = ["NETWORKS", "Network", "Result", "bounds", "load", "shipped_traces", "simulate"]

NETWORKS = ("ring", "recursive_halving", "double_binary_trees", "hierarchical")


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

    def costs(self, workers: int) -> cost_model.CommunicationCosts:
        """Returns the costs of the collectives among `workers` workers.

        Raises:
            ValueError: The workers do not fill whole nodes of a hierarchical network.
        """
        if self.algorithm != "hierarchical":
            function = getattr(cost_model, self.algorithm)
            return function(workers, self.alpha, self.beta, self.gamma)
        nodes, rest = divmod(workers, self.workers_per_node)
        if rest:
            raise ValueError(
                f"{workers} workers do not fill nodes of {self.workers_per_node}; choose a "
                "multiple, or other `workers_per_node`."
            )
        return cost_model.hierarchical(
            nodes,
            self.workers_per_node,
            alpha=self.alpha,
            beta=self.beta,
            intra_node_alpha=self.intra_node_alpha,
            intra_node_beta=self.intra_node_beta,
            gamma=self.gamma,
        )


@dataclasses.dataclass(frozen=True)
class Result:
    """One schedule with one planner on a number of workers.

    Args:
        workers: Number of workers.
        schedule: Name of the schedule.
        planner: Name of the planner.
        buckets: How many buckets the planner made.
        iteration_time: Time of an iteration in the steady state, in seconds.
        exposed: Communication that no computation hides, in seconds.
        speedup: Throughput over that of one worker alone.
        efficiency: Speedup per worker, 1.0 at best.
    """

    workers: int
    schedule: str
    planner: str
    buckets: int
    iteration_time: float
    exposed: float
    speedup: float
    efficiency: float


def simulate(
    trace: Trace,
    network: Network,
    workers: Sequence[int],
    planners: Mapping[str, Any],
    schedule_names: Sequence[str] = schedules.SCHEDULES,
    chunk_bytes: int | None = None,
) -> list[Result]:
    """Simulates every schedule with every planner on every number of workers.

    Use it to see how a model would scale, and which schedule and planner suit it.

    Args:
        trace: The model.
        network: The cluster.
        workers: Numbers of workers.
        planners: Planners of `tfdear.fusion` by any name. One that searches first runs its trials,
            from its current state, on simulated step times.
        schedule_names: Of `tfdear.schedules.SCHEDULES`. Defaults to all.
        chunk_bytes: Size of a chunk, in bytes; see `tfdear.schedules.timeline`. Defaults to None:
            an urgent transfer interrupts another at no cost.

    Returns:
        One `Result` for each, in the order of workers, schedules, planners.

    Example:

    >>> from tfdear import fusion, simulator
    >>> trace = simulator.load("resnet-50")
    >>> planners = {"planned": fusion.Planned()}
    >>> [result] = simulator.simulate(trace, simulator.Network(), [64], planners, ["dear"])
    >>> result.speedup > 50
    True

    Reference: Shi et al., "MG-WFBP", section 6.4.
    """
    results = []
    alone = trace.forward + trace.backward
    for count in workers:
        costs = network.costs(count)
        for schedule in schedule_names:
            for name, planner in planners.items():
                buckets = _plan(planner, trace, costs, schedule)
                timeline = schedules.timeline(schedule, buckets, trace, costs, chunk_bytes)
                # Zero only for a trace without times on a network that costs nothing.
                efficiency = alone / timeline.iteration_time if timeline.iteration_time else 1.0
                results.append(
                    Result(
                        workers=count,
                        schedule=schedule,
                        planner=name,
                        buckets=len(buckets),
                        iteration_time=timeline.iteration_time,
                        exposed=timeline.exposed,
                        speedup=count * efficiency,
                        efficiency=efficiency,
                    )
                )
    return results


def _plan(
    planner: Any, trace: Trace, costs: cost_model.CommunicationCosts, schedule: str
) -> list[list[int]]:
    if not isinstance(planner, SearchingPlanner):
        return planner.buckets(trace, costs, schedule)
    planner = copy.deepcopy(planner)  # Its trials belong to one network and schedule.
    while not planner.done:
        buckets = planner.buckets(trace, costs, schedule)
        planner.observe(schedules.timeline(schedule, buckets, trace, costs).iteration_time)
    return planner.buckets(trace, costs, schedule)


def bounds(trace: Trace, costs: cost_model.CommunicationCosts) -> dict[str, float]:
    """Returns the iteration times that no plan of each kind can beat, in seconds.

    Use it to see how near a schedule is to the optimum. All gradients are sent as one collective,
    with one start-up, and overlap is perfect.

    Args:
        trace: The model.
        costs: The network.

    Returns:
        Three times, by name.
        "all_reduce": communication under the backward pass only (equation 8); "dear_barrier":
        the published DeAR (equation 7, and the denominator of equation 6); "dear": without its
        barrier, the longer of computation and communication.

    Example:

    >>> from tfdear import simulator
    >>> trace = simulator.load("resnet-50")
    >>> times = simulator.bounds(trace, simulator.Network().costs(64))
    >>> times["dear"] <= times["dear_barrier"] <= times["all_reduce"]
    True

    Reference: Zhang et al., "DeAR", equations 6 to 8.
    """
    least = bounds_module.of_costs(trace.forward, trace.backward, [trace.bytes], costs)
    return {
        "all_reduce": least.all_reduce_overlap,
        "dear_barrier": least.dear_barrier,
        "dear": least.dear,
    }


def shipped_traces() -> list[str]:
    """Returns the names of the traces that come with the package, for `load`."""
    files = (entry.name for entry in _traces().iterdir())
    return sorted(name.removesuffix(".json") for name in files if name.endswith(".json"))


def load(name: str | os.PathLike) -> Trace:
    """Returns a trace: a shipped one by its name, or one from a file.

    Args:
        name: A name of `shipped_traces`, or the path of a JSON file that `Trace.save` wrote.

    Returns:
        The `Trace`.

    Raises:
        ValueError: There is no such trace, or the file is not one.

    Example:

    >>> from tfdear import simulator
    >>> len(simulator.load("bert-base").layers)
    206
    """
    if pathlib.Path(name).is_file():
        return Trace.load(name)
    if name not in shipped_traces():
        raise ValueError(
            f"There is no trace {os.fspath(name)!r}: it is neither a file nor one of "
            f"{', '.join(shipped_traces())}."
        )
    with importlib.resources.as_file(_traces() / f"{name}.json") as path:
        return Trace.load(path)


def _traces():
    return importlib.resources.files("tfdear.planning") / "traces"
