# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which ranks form the two levels that gradients are summed in. Imports no TensorFlow.

[Note: Two levels]
The ranks form a grid. A reduce-scatter along each row leaves every rank with one shard of the row's
sum. A reduce-scatter along each column, whose ranks have the same shard of the other rows, leaves a
part of that shard's total. All-gathers then restore the shards along the columns and all data along
the rows. With the nodes as rows, a node sends what one rank would have to send, and its ranks share
it.
"""

import dataclasses
import math
from collections.abc import Sequence

from tfdear.engine.plan import Levels


@dataclasses.dataclass(frozen=True)
class Grid:
    """The ranks in rows and columns."""

    rows: tuple[tuple[int, ...], ...]  # All of one length.
    nodes: bool  # Whether the rows are the nodes.

    @property
    def levels(self) -> Levels:
        """The sizes of the levels."""
        return Levels(intra=len(self.rows[0]), inter=len(self.rows))

    def row_of(self, rank: int) -> list[int]:
        """The ranks of a rank's row, in the order of the columns."""
        return list(next(row for row in self.rows if rank in row))

    def column_of(self, rank: int) -> list[int]:
        """The ranks of a rank's column, in the order of the rows."""
        column = self.row_of(rank).index(rank)
        return [row[column] for row in self.rows]


def make_grid(
    collective: str, node_of_rank: Sequence[int], asked_by: str = "", instead: str = ""
) -> Grid:
    """The grid of a collective that works in two levels, from the node of every rank.

    The ranks told each other their nodes, so all of them form the same grid. "hierarchical": the
    nodes are the rows. "torus2d": also, if there are several with several ranks each; else the grid
    is as square as the number of ranks allows. `asked_by` and `instead` are for the error: the
    options that ask for it, and those that ask for none.
    """
    nodes = [
        tuple(rank for rank in range(len(node_of_rank)) if node_of_rank[rank] == node)
        for node in sorted(set(node_of_rank))
    ]
    if len({len(ranks) for ranks in nodes}) > 1:
        counts = ", ".join(f"node {node} has {len(ranks)}" for node, ranks in enumerate(nodes))
        raise ValueError(
            f"{asked_by or repr(collective)} needs the same number of ranks on every node, because "
            "each rank sums with those of the same local rank on the other nodes. Start as many "
            f"ranks on each node, or use {instead or 'another collective'}. Received: {counts}"
        )
    if collective == "hierarchical" or (len(nodes) > 1 and len(nodes[0]) > 1):
        return Grid(tuple(nodes), nodes=True)
    world_size = len(node_of_rank)
    count = next(n for n in range(math.isqrt(world_size), 0, -1) if world_size % n == 0)
    length = world_size // count
    rows = tuple(tuple(range(r * length, (r + 1) * length)) for r in range(count))
    return Grid(rows, nodes=False)
