# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What it costs to exchange the gradient and the rows of a table. Imports no TensorFlow.

`overhead` is the table of the EmbRace paper, symbol by symbol. `TableTraffic` counts our own bytes,
of which `ExchangeCosts` makes seconds. `choose` takes an exchange by them.

Reference: Li et al., "EmbRace", ICPP 2022, section 4.1.2 and Table 2.
"""

import dataclasses
import math
from collections.abc import Mapping

from tfdear.planning import partition as partitions
from tfdear.planning import row_counts
from tfdear.planning.cost_model import CommunicationCosts, LinearCost
from tfdear.planning.partition import GRADIENT_BYTES, ID_BYTES, Partition
from tfdear.planning.table import Table

# In the order in which equally fast ones are taken.
EXCHANGES = ("all_reduce", "all_gather", "all_to_all")
APPROACHES = ("all_to_all", "all_reduce", "parameter_servers", "all_gather")
# Rows that are gathered travel with indices of this size.
_INDEX_BYTES = 8
_BLOCK_VALUES = 256
_BLOCKS_OF_A_MESSAGE = 64


def overhead(
    approach: str,
    *,
    density: float,
    table_bytes: float,
    workers: int,
    bandwidth: float,
    latency: float,
    nodes: int | None = None,
) -> float:
    """Returns the communication overhead of a table's gradient in a step, as Table 2 has it.

    Args:
        approach: One of `APPROACHES`.
        density: Part of the gradient that is not zero (alpha).
        table_bytes: Size of the table (M).
        workers: Number of workers (N).
        bandwidth: Bytes per second between two workers (B).
        latency: Start of a message, in seconds (beta).
        nodes: Servers, at most one on each node (n). Defaults to one for each worker.

    Returns:
        Seconds. An exchange of vectors is part of "all_to_all" and of "parameter_servers"; the
        others have it in the memory of each worker.

    Raises:
        ValueError: The approach is unknown.
    """
    if approach == "all_to_all":
        return 2 * (workers - 1) * (density * table_bytes / (workers * bandwidth) + latency)
    if approach == "all_reduce":
        return 2 * (workers - 1) * (table_bytes / (workers * bandwidth) + latency)
    if approach == "parameter_servers":
        servers = workers if nodes is None else nodes
        return 2 * workers * (density * table_bytes / (servers * bandwidth) + latency)
    if approach == "all_gather":
        return (workers - 1) * (density * table_bytes / bandwidth + latency)
    raise ValueError(f"`approach` must be one of {', '.join(APPROACHES)}. Received: {approach!r}")


@dataclasses.dataclass(frozen=True)
class ExchangeCosts:
    """What exchanges among a number of ranks cost: start-ups and times per byte.

    Args:
        collectives: Of all-reduce and all-gather.
        all_to_all: Of an all-to-all, per byte that the busiest rank sends to others or gets from
            them, whichever is more.
    """

    collectives: CommunicationCosts
    all_to_all: LinearCost

    def dense(self, table_bytes: float) -> float:
        """Returns the seconds of an all-reduce of the whole table."""
        return self.collectives.all_reduce.seconds(table_bytes)

    def gathered(self, contributed: float, ranks: int) -> float:
        """Returns the seconds of an all-gather of so many bytes from each rank."""
        return self.collectives.all_gather.seconds(contributed * ranks)


@dataclasses.dataclass(frozen=True)
class TableTraffic:
    """How many bytes exchanges of a table move: those that the busiest rank sends, or gets.

    Every rank is taken to use as many rows as the trace says.

    Args:
        table: The table.
        ranks: How many ranks use it.
        holders: Which part each of them holds. With fewer ranks than use the table, the first
            ones are its servers.
        value_bytes: Bytes of a value of a vector, in the type of the computation. Defaults to 4.
    """

    table: Table
    ranks: int
    holders: Partition
    value_bytes: int = 4

    def vectors(self, rows: int) -> int:
        """Returns the bytes of an exchange of the vectors of so many ids of each rank."""
        return self._rows(rows) * self.value_bytes

    def gradients(self, rows: int) -> int:
        """Returns the bytes of an exchange of the gradients of so many rows of each rank."""
        return self._rows(rows) * GRADIENT_BYTES

    def ids(self) -> int:
        """Returns the bytes of an exchange in which holders get the ids that they are asked for."""
        if self.holders.kind == "column":
            return (self.ranks - 1) * self.table.coalesced * ID_BYTES
        received = (self.ranks - 1) * self._busiest_rows(self.table.coalesced)
        return max(received, self._from_others(self.table.coalesced)) * ID_BYTES

    @property
    def may_pool(self) -> bool:
        """Whether holders of columns can add up the vectors of bags, which then come not early."""
        return self.table.bags > 0 and self.holders.kind == "column" and self.ranks > 1

    @property
    def pools(self) -> bool:
        """Whether sums of bags travel in place of vectors: where it takes fewer bytes.

        As the ranks find it in a step, [Note: pooled vectors] in
        `custom_ops/engine/schedule/table_lookup.h`.
        """
        if not self.may_pool:
            return False
        saved = (self.table.coalesced - self.table.bags) * self.table.columns * self.value_bytes
        return self.ranks * self._bag_bytes < saved

    def bags(self) -> int:
        """Returns what a rank gives to an all-gather of the ids in its bags, if there is one."""
        return self._bag_bytes if self.pools else 0

    def looked_up(self) -> int:
        """Returns the bytes of an exchange of all vectors that a step needs, or of their sums."""
        return self.vectors(self.table.bags if self.pools else self.table.coalesced)

    @property
    def _bag_bytes(self) -> int:
        """The size of each bag, and the place of each id in it."""
        tokens = self.table.ids if self.table.tokens is None else self.table.tokens
        return (self.table.bags + tokens) * ID_BYTES

    def gathered(self, rows: int) -> int:
        """Returns what a rank gives to an all-gather of so many gradient rows and their indices."""
        return rows * (GRADIENT_BYTES * self.table.columns + _INDEX_BYTES)

    def _rows(self, rows: int) -> int:
        """Values on the busiest link: that of the largest holder, or of who gets from the others.

        Vectors go from holders to users, gradients back on the same ways.
        """
        others = self.ranks - 1
        if self.holders.kind == "row":
            held = others * self._busiest_rows(rows)
            return max(held, self._from_others(rows)) * self.table.columns
        widths = self.holders.widths
        least = min(widths) if self.holders.ranks == self.ranks else 0
        return rows * max(others * max(widths), self.table.columns - least)

    def _busiest_rows(self, rows: int) -> int:
        """How many of a rank's rows the busiest holder has."""
        share = row_counts.fit(self.table).busiest_share(self.holders.ranks)
        return min(rows, round(rows * share))

    def _from_others(self, rows: int) -> int:
        """How many of a rank's rows others hold, at most."""
        if self.holders.ranks < self.ranks:
            return rows
        return rows - rows // self.ranks if self.ranks > 1 else 0


def worth_a_start_up(bytes: int, cost: LinearCost) -> bool:
    """Whether to send so many bytes apart, so that others do not wait for them, pays."""
    return cost.b * bytes > cost.a


def block_sparse(table: Table, ranks: int, costs: ExchangeCosts) -> float:
    """Returns the seconds of an all-reduce that leaves out blocks of zeros.

    Every rank sends its blocks that are not all zero to the ranks that sum them, a part of the
    blocks each, and these send the sums to all. Blocks travel a few to a message, since a rank
    that sums waits for the others' next blocks before it goes on.

    Reference: Fei et al., "Efficient Sparse Collective Communication and its Application to
    Accelerate Distributed Deep Learning" (OmniReduce).
    """
    if ranks == 1:
        return 0.0
    per_row = -(-table.columns // _BLOCK_VALUES)
    block_bytes = min(table.columns, _BLOCK_VALUES) * GRADIENT_BYTES + ID_BYTES
    own = table.coalesced * per_row
    summed = row_counts.fit(table).touched(ranks) * per_row
    others = ranks - 1
    sent = (own + summed) * others / ranks
    messages = max(2 * others, math.ceil(sent / _BLOCKS_OF_A_MESSAGE))
    latency = costs.all_to_all.a / others
    return latency * messages + costs.all_to_all.b * sent * block_bytes


@dataclasses.dataclass(frozen=True)
class Choice:
    """How a table is exchanged, and why.

    Args:
        exchange: One of `EXCHANGES`.
        partition: Which part each rank holds; None if each has the whole table.
        seconds: Time of a step's communication with each exchange.
        memory: Bytes that each exchange takes on the fullest rank.
    """

    exchange: str
    partition: Partition | None
    seconds: Mapping[str, float]
    memory: Mapping[str, int]


def choose(
    table: Table,
    ranks: int,
    costs: ExchangeCosts,
    *,
    memory_bytes: int | None = None,
    slots: int = 0,
    kind: str = "auto",
    value_bytes: int = 4,
    ids_known: bool = False,
    joins_bucket: bool = False,
) -> Choice:
    """Chooses how a table is exchanged: the fastest way of those that fit into memory.

    Use it from sizes, with the ids of a batch as the number of rows (more they cannot be), and
    again with measured numbers of rows. Ranks that give the same numbers choose the same.

    Args:
        table: The table, with its number of rows in a batch, `coalesced`.
        ranks: Number of ranks.
        costs: What exchanges cost, by measured start-ups and times per byte.
        memory_bytes: What a rank has for the table, its optimizer's slots and what is exchanged.
            Defaults to None: enough. Where nothing fits, the smallest is chosen.
        slots: Variables of the optimizer for each one of the table. Defaults to 0.
        kind: Of the partition: "column", "row" or "auto".
        value_bytes: Bytes of a value of a vector, in the type of the computation. Defaults to 4.
        ids_known: Whether all ranks know each other's ids anyway. Defaults to False.
        joins_bucket: Whether there are dense gradients that an all-reduce of the table can share
            its start-up with. Defaults to False.

    Returns:
        The `Choice`.
    """
    rows, columns, used = table.rows, table.columns, table.coalesced
    parts = partitions.choose(kind, rows, columns, ranks)
    traffic = TableTraffic(table, ranks, parts, value_bytes)
    exchange = costs.all_to_all
    dense_bytes = rows * columns * GRADIENT_BYTES
    gathered = traffic.gathered(used)
    ids = 0.0 if ids_known else exchange.seconds(traffic.ids())
    if traffic.pools and not ids_known:
        ids += costs.gathered(traffic.bags(), ranks)
    seconds = {
        "all_reduce": costs.dense(dense_bytes) - (costs.dense(0) if joins_bucket else 0.0),
        "all_gather": costs.gathered(gathered, ranks),
        "all_to_all": ids
        + exchange.seconds(traffic.looked_up())
        + exchange.seconds(traffic.gradients(used)),
    }
    held_rows, held_columns = parts.shape_of(0)  # No rank has more than the first.
    if parts.kind == "column":
        held_columns = max(parts.widths)
    part_bytes = held_rows * held_columns * GRADIENT_BYTES
    vectors = used * columns * value_bytes
    memory = {
        "all_reduce": dense_bytes * (2 + slots),
        "all_gather": dense_bytes * (1 + slots) + ranks * gathered,
        "all_to_all": part_bytes * (1 + slots)
        + vectors
        + traffic.vectors(used)
        + traffic.gradients(used),
    }
    fitting = [name for name in EXCHANGES if memory_bytes is None or memory[name] <= memory_bytes]
    if fitting:
        chosen = min(fitting, key=seconds.__getitem__)
    else:
        chosen = min(EXCHANGES, key=memory.__getitem__)
    return Choice(chosen, parts if chosen == "all_to_all" else None, seconds, memory)
