# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Whole sharded tables, or rows of them, put together from what the ranks hold.

[Note: Whole reads in a step]
A step that needs all rows of a table gathers them from all ranks, and its gradient is dense. Where
the step reads the table again before anything could have changed it, it gets what was gathered: a
layer that turns ids into vectors and vectors into scores of all ids costs what one does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tfdear.base import names
from tfdear.data import step_data
from tfdear.engine import library
from tfdear.gradients.placement import Placement

if TYPE_CHECKING:
    from tfdear.gradients.sharded_variable import ShardedVariable

# What uses a table and leaves it as it is; any other op, a call of a function too, may change it.
_READERS = frozenset(
    {
        "DearAwait",
        "DearReadShard",
        "DearTableLookup",
    }
)


@tf.RegisterGradient("DearTableValue")
def _gradient_of_value(
    op: tf.Operation, upstream: tf.Tensor | tf.IndexedSlices
) -> list[tf.Tensor | tf.IndexedSlices | None]:
    if isinstance(upstream, tf.IndexedSlices):
        shape = tf.constant(op.outputs[0].shape.as_list())
        upstream = tf.IndexedSlices(upstream.values, tf.cast(upstream.indices, tf.int64), shape)
    return [upstream, None]


def read_whole(variable: ShardedVariable) -> tf.Tensor:
    """The whole of a table or one of its slots; in a graph, call it on all ranks."""
    placement = variable.placement
    graph = step_data.current_graph()
    if placement.partition.ranks == 1:
        value = variable.read_shard()
    elif graph is None:
        value = tf.convert_to_tensor(variable.read_rows(0, placement.partition.rows))
    else:
        value = _read_once(variable, graph)
    with tf.device(variable.device):
        value = tf.ensure_shape(value, placement.shape)
        return library.load().dear_table_value(variable.tape_handle, value)


def _read_once(variable: ShardedVariable, graph: tf.Graph) -> tf.Tensor:
    """The whole, gathered anew if something in the graph may have changed the table since."""
    rows = variable.placement.partition.rows
    if not hasattr(graph, "capture"):  # Not the graph of a function.
        return _gather(variable, variable.read_shard(), 0, rows)
    handle = graph.capture(variable.table.raw_handle)
    # Of a slot, too, as nothing but the table's updates writes it.
    changes = [op for op in handle.consumers() if op.type not in _READERS]
    name = f"tfdear_whole_table_{variable.number}"
    for known_changes, value in graph.get_collection(name):
        # The graph of a function inherits what was noted in the one around it.
        if value.graph is graph and known_changes == len(changes):
            return value
    value = _gather(variable, variable.read_shard(), 0, rows)
    graph.clear_collection(name)
    graph.add_to_collection(name, (len(changes), value))
    return value


def read_block(variable: ShardedVariable, begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Rows of the whole, from all ranks, without gradients. Call it on all ranks.

    Args:
        variable: A table.
        begin: The first row, scalar int64.
        end: The row after the last one, scalar int64.
    """
    placement = variable.placement
    first, last = (_held_before(placement, row, placement.rank) for row in (begin, end))
    part = variable.read_shard(first, last)
    if placement.partition.ranks == 1:
        return part
    return _gather(variable, part, begin, end)


def _held_before(placement: Placement, row: tf.Tensor | int, rank: int) -> tf.Tensor | int:
    """How many of the rows before this one a rank has a part of."""
    if placement.partition.kind == "column":
        return row
    ranks = placement.partition.ranks
    return (row - rank + ranks - 1) // ranks


def _gather(
    variable: ShardedVariable, part: tf.Tensor, begin: tf.Tensor | int, end: tf.Tensor | int
) -> tf.Tensor:
    """Whole rows from `begin` to `end`, of which this rank holds a part."""
    partition = variable.placement.partition
    collectives = variable.strategy.extended.collectives
    if partition.kind == "row":
        gathered = collectives.all_gather(part, names.Lane.EXCHANGES)
        # The rows of a rank lie together; these are the places that they go to.
        count = end - begin
        places = [
            tf.range(tf.minimum((rank - begin) % partition.ranks, count), count, partition.ranks)
            for rank in range(partition.ranks)
        ]
        return tf.gather(gathered, tf.math.invert_permutation(tf.concat(places, 0)))
    gathered = collectives.all_gather(tf.reshape(part, [-1]), names.Lane.EXCHANGES)
    widths = partition.widths
    sizes = tf.stack([(end - begin) * width for width in widths])
    parts = tf.split(gathered, sizes)
    return tf.concat(
        [tf.reshape(each, [-1, width]) for each, width in zip(parts, widths, strict=True) if width],
        1,
    )


def part_of(placement: Placement, whole: tf.Tensor) -> tf.Tensor:
    """What this rank holds of a whole table, or of a whole gradient of one."""
    if placement.partition.kind == "row":
        return whole[placement.offset :: placement.stride]
    columns = placement.partition.columns_of(placement.rank)
    return whole[:, columns.start : columns.stop]
