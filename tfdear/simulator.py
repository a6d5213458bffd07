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
from tfdear.planning import cost_model, schedules, table_schedules
from tfdear.planning.network import NETWORKS, Network
from tfdear.planning.table_methods import METHODS
from tfdear.planning.trace import Trace

__all__ = [
    "METHODS",
    "NETWORKS",
    "Network",
    "Result",
    "TableResult",
    "bounds",
    "load",
    "shipped_traces",
    "simulate",
    "simulate_tables",
]


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
                buckets = _plan(planner, trace, costs, schedule, chunk_bytes)
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


@dataclasses.dataclass(frozen=True)
class TableResult(Result):
    """A method to exchange tables on a number of workers, with its best schedule and planner.

    Args:
        method: Name of the method, one of `METHODS`.
    """

    method: str


def simulate_tables(
    trace: Trace,
    network: Network,
    workers: Sequence[int],
    planners: Mapping[str, Any],
    methods: Sequence[str] = tuple(METHODS),
    schedule_names: Sequence[str] = schedules.SCHEDULES,
    chunk_bytes: int | None = None,
    kind: str = "auto",
    value_bytes: int = 4,
    ids_known: bool = False,
) -> list[TableResult]:
    """Simulates every method to exchange the tables of a model on every number of workers.

    Use it to see what sharded embeddings would save. Each method has the planner and, of the
    schedules that it can have, the one with which its iterations are shortest.

    Args:
        trace: The model, with tables.
        network: The cluster.
        workers: Numbers of workers.
        planners: Planners of `tfdear.fusion` by any name.
        methods: Names of `METHODS`. Defaults to all.
        schedule_names: Of `tfdear.schedules.SCHEDULES`, for dense gradients. Defaults to all.
        chunk_bytes: Size of a chunk, in bytes, as in `simulate`.
        kind: How tables are divided: "column", "row" or "auto". Defaults to "auto".
        value_bytes: Bytes of a value of a vector. Defaults to 4.
        ids_known: Whether every rank with shards knows the ids of all anyway, as where each reads
            the global batch and takes its part. Defaults to False.

    Returns:
        One `TableResult` for each, in the order of workers, methods; none for a method that
        cannot have any of the schedules.

    Raises:
        ValueError: The trace has no tables, or there is no such method.

    Example:

    >>> from tfdear import fusion, simulator
    >>> trace, planners = simulator.load("gnmt-8"), {"planned": fusion.Planned()}
    >>> dense, early = simulator.simulate_tables(
    ...     trace, simulator.Network(), [16], planners, ["dense", "+early"]
    ... )
    >>> early.iteration_time < dense.iteration_time
    True

    Reference: Li et al., "EmbRace", section 5.
    """
    if not trace.tables:
        raise ValueError(f"Trace {trace.name!r} has no tables; it needs at least one.")
    for method in methods:
        if method not in METHODS:
            raise ValueError(f"`methods` must be of {', '.join(METHODS)}. Received: {method!r}")
    results = []
    alone = trace.forward + trace.backward
    single = [[layer] for layer in reversed(range(len(trace.layers)))]
    for count in workers:
        cluster = network.cluster(count, kind, value_bytes, ids_known)
        plans: dict[tuple, list[list[int]]] = {}

        def buckets(schedule: str, name: str, sent: Trace, plans=plans, cluster=cluster):
            key = (schedule, name, tuple(layer.bytes for layer in sent.layers))
            if key not in plans:
                costs = cluster.costs.collectives
                plans[key] = _plan(planners[name], sent, costs, schedule, chunk_bytes)
            return plans[key]

        for method in methods:
            sent = table_schedules.dense_part(trace, method, cluster)
            choices = [
                (schedule, name)
                for schedule in METHODS[method].schedules
                if schedule in schedule_names
                for name in planners
            ]
            if method == "byteps":  # It cuts tensors and never fuses them.
                choices = choices[:1]
            found = []
            for schedule, name in choices:
                planned = single if method == "byteps" else buckets(schedule, name, sent)
                timeline = table_schedules.timeline(
                    method, schedule, planned, trace, cluster, chunk_bytes
                )
                efficiency = alone / timeline.iteration_time if timeline.iteration_time else 1.0
                found.append(
                    TableResult(
                        workers=count,
                        schedule=schedule,
                        planner="" if method == "byteps" else name,
                        buckets=len(planned),
                        iteration_time=timeline.iteration_time,
                        exposed=timeline.exposed,
                        speedup=count * efficiency,
                        efficiency=efficiency,
                        method=method,
                    )
                )
            if found:
                results.append(min(found, key=lambda result: result.iteration_time))
    return results


def _plan(
    planner: Any,
    trace: Trace,
    costs: cost_model.CommunicationCosts,
    schedule: str,
    chunk_bytes: int | None,
) -> list[list[int]]:
    if not isinstance(planner, SearchingPlanner):
        return planner.buckets(trace, costs, schedule)
    planner = copy.deepcopy(planner)  # Its trials belong to one network and schedule.
    while not planner.done:
        buckets = planner.buckets(trace, costs, schedule)
        tried = schedules.timeline(schedule, buckets, trace, costs, chunk_bytes)
        planner.observe(tried.iteration_time)
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
