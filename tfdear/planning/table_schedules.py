# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""When the rows of tables travel, in the model of one iteration. Imports no TensorFlow.

[Note: Tables in the model of an iteration] What is exchanged of a table is more work of the line,
beside the buckets of dense gradients. Gradient rows are ready when the backward pass has come
through the table's layer; the layer's forward computation waits for the vectors of its batch, and
these for the rows that change them. An all-gather of rows leaves the whole table on every rank, so
that the layer waits for nothing else. By priority the most urgent are ids and bags, then rows that
the next batches need, their vectors, dense gradients as their schedule has them, and at last the
other rows; all of them have travelled when an iteration ends.
"""

import dataclasses
import math
from collections.abc import Sequence

from tfdear.planning import cost_model, embedding_costs, partition, row_counts, schedules
from tfdear.planning.embedding_costs import ExchangeCosts, TableTraffic
from tfdear.planning.line import (
    Load,
    QueueItem,
    Step,
    Transfer,
    carry,
    make_loads,
    make_queue_items,
)
from tfdear.planning.partition import ID_BYTES, Partition
from tfdear.planning.schedules import Timeline
from tfdear.planning.table import Table
from tfdear.planning.table_methods import METHODS
from tfdear.planning.trace import Trace

SLICE_BYTES = 4 << 20
# The first parts of priorities. Those of dense collectives are 0 and more.
_IDS, _BAGS, _ROWS, _VECTORS, _EARLY, _DELAYED = -5.0, -4.0, -3.0, -2.0, -1.0, 9.0

Key = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """How many ranks there are, and what their exchanges cost.

    Args:
        workers: Number of ranks.
        costs: What their exchanges cost.
        slices: What a slice of a dense gradient costs, to one of as many servers as ranks and back,
            where all of them have the same number of slices.
        kind: Of the partitions: "column", "row" or "auto". Defaults to "auto".
        value_bytes: Bytes of a value of a vector, in the type of the computation. Defaults to 4.
        ids_known: Whether every rank with shards knows the ids of all anyway, as where each reads
            the global batch and takes its part. Servers are always asked. Defaults to False.
    """

    workers: int
    costs: ExchangeCosts
    slices: cost_model.LinearCost
    kind: str = "auto"
    value_bytes: int = 4
    ids_known: bool = False


def exchange_of(table: Table, method: str, cluster: Cluster) -> str:
    """Returns how a table is exchanged: "all_reduce", "all_gather" or "all_to_all"."""
    exchange = METHODS[method].exchange
    if exchange != "auto":
        return exchange
    return embedding_costs.choose(
        table,
        cluster.workers,
        cluster.costs,
        kind=cluster.kind,
        value_bytes=cluster.value_bytes,
        ids_known=cluster.ids_known,
        joins_bucket=True,
    ).exchange


def dense_part(trace: Trace, method: str, cluster: Cluster) -> Trace:
    """Returns the trace with nothing to send for those tables that do not travel as a whole."""
    apart = {
        table.layer for table in trace.tables if exchange_of(table, method, cluster) != "all_reduce"
    }
    layers = (
        dataclasses.replace(layer, bytes=0) if layer.name in apart else layer
        for layer in trace.layers
    )
    return Trace(trace.name, tuple(layers))


def timeline(
    method: str,
    schedule: str,
    buckets: Sequence[Sequence[int]],
    trace: Trace,
    cluster: Cluster,
    chunk_bytes: int | None = None,
) -> Timeline:
    """Simulates one iteration of a model with tables.

    Args:
        method: One of `METHODS`.
        schedule: Of the dense gradients, one of the method's.
        buckets: Layers of each bucket, in backward order: of the trace, or of its `dense_part`.
        trace: The model.
        cluster: The ranks.
        chunk_bytes: As in `schedules.timeline`. Defaults to None: the ideal queue.

    Returns:
        The `Timeline`. Transfers of tables have numbers of buckets behind those of the bucket
        list, in the order of the trace's tables.

    Raises:
        ValueError: The method is unknown or has no such schedule.
    """
    if method not in METHODS:
        raise ValueError(f"`method` must be one of {', '.join(METHODS)}. Received: {method!r}")
    chosen = METHODS[method]
    if schedule not in chosen.schedules:
        raise ValueError(
            f"The schedule of method {method!r} must be one of {', '.join(chosen.schedules)}. "
            f"Received: {schedule!r}"
        )
    if method == "byteps":
        sliced = _costs_of_slices(buckets, trace, cluster)
        plan = schedules.make_plan(schedule, buckets, trace, sliced, SLICE_BYTES, credit=1)
        return schedules.execute(plan, trace, sliced)
    if chosen.exchange == "all_reduce":
        return schedules.timeline(schedule, buckets, trace, cluster.costs.collectives, chunk_bytes)
    return _Iteration(method, schedule, buckets, trace, cluster).play(chunk_bytes)


def _costs_of_slices(
    buckets: Sequence[Sequence[int]], trace: Trace, cluster: Cluster
) -> cost_model.CommunicationCosts:
    """Each slice has one of as many servers as there are workers, of which the busiest decides."""
    slices = sum(schedules.chunks_of(buckets, trace, SLICE_BYTES))
    uneven = math.ceil(slices / cluster.workers) * cluster.workers / slices
    cost = cost_model.LinearCost(uneven * cluster.slices.a, uneven * cluster.slices.b)
    return dataclasses.replace(cluster.costs.collectives, all_reduce=cost)


@dataclasses.dataclass
class _Iteration:
    """One iteration in which tables do not travel as dense gradients do."""

    name: str  # Of the method.
    schedule: str
    buckets: Sequence[Sequence[int]]
    trace: Trace
    cluster: Cluster

    def __post_init__(self) -> None:
        self.method = METHODS[self.name]
        names = [layer.name for layer in self.trace.layers]
        self.loads: dict[Key, Load] = {}
        self.needed: dict[int, list[Key]] = {}  # By layer: what its forward pass waits for.
        self.on_demand: dict[int, list[Transfer]] = {}
        self.layers = [names.index(table.layer) for table in self.trace.tables]

    def play(self, chunk_bytes: int | None) -> Timeline:
        dense = dense_part(self.trace, self.name, self.cluster)
        for number, table in enumerate(self.trace.tables):
            self._add(number, table)
        chunks: dict[str, list[int]] = {}
        if chunk_bytes is not None:
            phase = "all_gather" if self.schedule == "dear" else "all_reduce"
            if self.schedule in ("dear", "bytescheduler"):
                chunks[phase] = schedules.chunks_of(self.buckets, dense, chunk_bytes)
        items = make_queue_items(
            self.schedule, self.buckets, dense, self.cluster.costs.collectives, chunks
        )
        for (_, bucket), parts in items.items():
            if not any(dense.layers[layer].bytes for layer in self.buckets[bucket]):
                # A bucket of tables only is not sent.
                parts[:] = [QueueItem(part.priority, part.step, 0.0) for part in parts]
        ready = schedules.ready_times(self.buckets, dense)
        loads = {**make_loads(self.schedule, items, ready), **self.loads}
        transfers = carry(loads, preemptive=chunk_bytes is None)
        ends: dict[Key, float] = {}
        for transfer in transfers:
            ends[transfer.phase, transfer.bucket] = transfer.end
        arrivals = {layer: max(ends[key] for key in keys) for layer, keys in self.needed.items()}
        return schedules.finish(transfers, self.buckets, dense, arrivals, self.on_demand)

    def _add(self, number: int, table: Table) -> None:
        exchange = exchange_of(table, self.name, self.cluster)
        if exchange == "all_gather":
            self._add_gather(number, table)
        elif exchange == "all_to_all" and self.method.horizontal:
            self._add_by_priority(number, table)
        elif exchange == "all_to_all":
            self._add_in_order(number, table)

    def _add_gather(self, number: int, table: Table) -> None:
        traffic = self._traffic(table)
        rows = table.coalesced if self.method.coalesced else table.ids
        seconds = self.cluster.costs.gathered(traffic.gathered(rows), self.cluster.workers)
        key = self._load("sparse_gather", number, self._place(number), seconds)
        self.needed[self.layers[number]] = [key]

    def _add_in_order(self, number: int, table: Table) -> None:
        traffic, rows = self._traffic(table), table.coalesced
        exchange = self.cluster.costs.all_to_all
        seconds = exchange.seconds(traffic.gradients(rows))
        key = self._load("gradient_rows", number, self._place(number), seconds)
        asked = {"vectors": exchange.seconds(traffic.looked_up())}
        if self.method.servers is not None or not self.cluster.ids_known:
            if traffic.pools:
                asked = {"bags": self._seconds_of_bags(traffic), **asked}
            asked = {"ids": self._seconds_of_ids(traffic), **asked}
        self.on_demand[self.layers[number]] = [
            Transfer(phase, key[1], 0, 1, 0.0, seconds) for phase, seconds in asked.items()
        ]

    def _add_by_priority(self, number: int, table: Table) -> None:
        traffic, exchange = self._traffic(table), self.cluster.costs.all_to_all
        all_rows = table.coalesced
        again = row_counts.fit(table).prior(self.cluster.workers)
        # As many ids of the next batch are in this one of some rank as the other way around.
        prior = again if self._splits(traffic.gradients(all_rows - again), "vertical") else all_rows
        late = all_rows
        if not traffic.may_pool and self._splits(traffic.vectors(all_rows - again), "early"):
            late = again
        known: tuple[Key, ...] = ()
        if not self.cluster.ids_known:
            seconds = self._seconds_of_ids(traffic, split=min(prior, late) < all_rows)
            known = (self._load("ids", number, (_IDS,), seconds, ready=0.0),)
        rows = self._load(
            "prior_rows" if prior < all_rows else "gradient_rows",
            number,
            (_ROWS,),
            exchange.seconds(traffic.gradients(prior)),
            after=known,
        )
        before: tuple[Key, ...] = (rows,)
        if traffic.pools and not self.cluster.ids_known:
            # Bags are told when the lookup comes to them, not beforehand.
            seconds, begin = self._seconds_of_bags(traffic), self.trace.backward
            before = (rows, self._load("bags", number, (_BAGS,), seconds, ready=begin))
        size = traffic.vectors(late) if late < all_rows else traffic.looked_up()
        seconds = exchange.seconds(size)
        needed = [self._load("vectors", number, (_VECTORS,), seconds, before, ready=0.0)]
        if late < all_rows:
            seconds = exchange.seconds(traffic.vectors(all_rows - late))
            needed.append(self._load("early_vectors", number, (_EARLY,), seconds, known, ready=0.0))
        self.needed[self.layers[number]] = needed
        if prior < all_rows:
            seconds = exchange.seconds(traffic.gradients(all_rows - prior))
            self._load("delayed_rows", number, (_DELAYED,), seconds, known)

    def _splits(self, apart: int, part: str) -> bool:
        """Whether an exchange is split, so that so many bytes travel apart.

        They take a start-up more. It is worth it if what waits no longer for them waited longer.
        """
        if self.method.exchange != "auto":
            return getattr(self.method, part)
        return embedding_costs.worth_a_start_up(apart, self.cluster.costs.all_to_all)

    def _seconds_of_ids(self, traffic: TableTraffic, split: bool = False) -> float:
        """Holders of rows get the ids of theirs; all ranks get all ids if more depends on them.

        By column all ranks hold something of each row; where rows are split, whether one is needed
        in a next batch follows from the ids of all.
        """
        costs, table = self.cluster.costs, traffic.table
        if traffic.holders.kind == "column" or split:
            return costs.gathered(ID_BYTES * table.coalesced, self.cluster.workers)
        return costs.all_to_all.seconds(traffic.ids())

    def _seconds_of_bags(self, traffic: TableTraffic) -> float:
        return self.cluster.costs.gathered(traffic.bags(), self.cluster.workers)

    def _traffic(self, table: Table) -> TableTraffic:
        cluster, servers = self.cluster, self.method.servers
        if servers is None:
            holders = partition.choose(cluster.kind, table.rows, table.columns, cluster.workers)
        else:
            holders = Partition(
                "row", table.rows, table.columns, min(servers, cluster.workers) or cluster.workers
            )
        return TableTraffic(table, cluster.workers, holders, cluster.value_bytes)

    def _place(self, number: int) -> tuple[float, ...]:
        """The priority of what takes its turn among the gradients of its schedule."""
        layer = self.layers[number]
        bucket = next(i for i, layers in enumerate(self.buckets) if layer in layers)
        # Within the bucket of its layer, whose place is a whole number.
        return (0.0, (-bucket if self.schedule == "bytescheduler" else bucket) - 0.5)

    def _load(
        self,
        phase: str,
        number: int,
        priority: tuple[float, ...],
        seconds: float,
        after: tuple[Key, ...] = (),
        ready: float | None = None,
    ) -> Key:
        """Adds work of the line; it is ready with the gradient of the table's layer, or before."""
        bucket = len(self.buckets) + number
        item = QueueItem((*priority, self.layers[number]), Step(phase, bucket, 0, 1), seconds)
        if ready is None:
            # The gradient of the layer, when all layers behind it have theirs.
            first = 0 if self.schedule == "sequential" else self.layers[number]
            ready = sum(layer.backward for layer in self.trace.layers[first:])
        self.loads[phase, bucket] = Load([item], ready, after)
        return phase, bucket
