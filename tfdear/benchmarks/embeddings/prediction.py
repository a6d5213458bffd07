# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the simulator says about a replay, with the costs of the line as it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfdear import fusion
from tfdear.planning import table_schedules
from tfdear.planning.embedding_costs import ExchangeCosts
from tfdear.planning.network import Network
from tfdear.planning.table_methods import METHODS
from tfdear.planning.trace import Trace


def network_of(costs: ExchangeCosts, ranks: int) -> Network:
    """A network of any number of ranks, with the line that so many have."""
    gather = costs.collectives.all_gather
    others = ranks - 1
    return Network(alpha=gather.a / others, beta=gather.b * ranks / others)


def iteration_times(
    trace: Trace, network: Network, workers: Sequence[int], schedules: Mapping[str, str]
) -> dict[str, dict[int, float]]:
    """Seconds of an iteration with each method, by number of workers.

    Args:
        trace: The model. Each worker computes as long as it says.
        network: Between the workers.
        workers: Numbers of them.
        schedules: Of the dense gradients, by method; methods that the simulator lacks are left out.
    """
    times: dict[str, dict[int, float]] = {}
    single = [[layer] for layer in reversed(range(len(trace.layers)))]
    for count in workers:
        cluster = network.cluster(count)
        for method, schedule in schedules.items():
            if method not in METHODS:
                continue
            buckets = single
            sent = table_schedules.dense_part(trace, method, cluster)
            if schedule != "bytescheduler" and sent.bytes:
                buckets = fusion.Planned().buckets(sent, cluster.costs.collectives, schedule)
            timeline = table_schedules.timeline(
                method, schedule, buckets, trace, cluster, table_schedules.SLICE_BYTES
            )
            times.setdefault(method, {})[count] = timeline.iteration_time
    return times
