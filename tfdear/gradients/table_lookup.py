# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Vectors of a sharded table: looked up by the ranks that hold them, and exchanged.

A word travels once per rank and step, however often it occurs in the batch. The gradient of a
lookup is what `tf.gather` has: `tf.IndexedSlices` with a row for every id of the batch. (EmbRace,
sections 4.1.1 and 4.2.2.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tfdear.data import examples as examples_module
from tfdear.data import step_data
from tfdear.engine import library
from tfdear.gradients import bags as bags_module
from tfdear.gradients import (
    common_ids,
    differentiated_loop,
    lookup_group,
    next_ids,
    order,
    variable_names,
)

if TYPE_CHECKING:
    from tfdear.gradients.sharded_variable import ShardedVariable

# Whose results carry no gradient: that of the table comes from the op that makes the output.
for _name in (
    "DearUniqueIds",
    "DearGatheredIds",
    "DearTableLookup",
    "DearExchangedVectors",
    "DearReadShard",
):
    tf.no_gradient(_name)


@tf.RegisterGradient("DearTableOutput")
def _gradient_of_output(op: tf.Operation, upstream: tf.Tensor) -> list[tf.IndexedSlices | None]:
    differentiated_loop.check_not_within()
    shape = tf.TensorShape(op.get_attr("shape"))
    rows = tf.cast(tf.convert_to_tensor(upstream), tf.float32)
    ids = tf.cast(op.inputs[3], tf.int64)
    slices = tf.IndexedSlices(rows, ids, tf.constant(shape.as_list()))
    return [slices, None, None, None]


def look_up(table: ShardedVariable, ids: tf.Tensor, dtype: tf.DType, common: int = 0) -> tf.Tensor:
    """The vectors of ids of any shape, in the given type, in which they travel.

    Call it on all ranks, each with ids of its own. `common`: this many of the first are different
    ids, and must be the same on all ranks that have examples.
    """
    table.note_use()
    ids = _whole(ids)
    flat = tf.reshape(ids, [-1])
    with tf.device(table.device), step_data.required():
        unique, positions, present = _unique_of(table, flat)
        cut = unique
        if present is not None:
            cut = unique[: tf.where(present, tf.shape(unique)[0], 0)]
        vectors = _vectors_of(table, flat, cut, positions, dtype, common)
        output = library.load().dear_table_output(
            table.tape_handle, vectors, positions, flat, shape=table.placement.shape
        )
        _use_for_gradient_alone(output)
    columns = table.placement.partition.columns
    shape = tf.concat([tf.shape(ids), [columns]], 0)
    return tf.ensure_shape(
        tf.reshape(output, shape), tf.TensorShape(ids.shape).concatenate([columns])
    )


def sums_of_bags(
    table: ShardedVariable, ids: tf.Tensor, bags: bags_module.Bags, dtype: tf.DType
) -> tf.Tensor:
    """The sums of the vectors of each bag of ids, added up in the given type.

    It is what `look_up` yields, added up; but where these are fewer bytes, sums travel. Call it on
    all ranks, for a table that is divided among several by column. `ids`: a vector.
    """
    table.note_use()
    flat = tf.reshape(_whole(ids), [-1])  # A tensor of its own, by which the lookup is known.
    with tf.device(table.device), step_data.required():
        unique, positions, present = _unique_of(table, flat)
        cut, pooling = unique, bags_module.Pooling(bags, positions)
        if present is not None:
            cut = unique[: tf.where(present, tf.shape(unique)[0], 0)]
            pooling = pooling.cut(present)
        sums = _vectors_of(table, flat, cut, positions, dtype, pooling=pooling)
        output = library.load().dear_pooled_output(
            table.tape_handle, sums, bags.bag_of, flat, bags.count, shape=table.placement.shape
        )
        _use_for_gradient_alone(output)
    return output


def checked(table: ShardedVariable, ids: tf.Tensor) -> tf.Tensor:
    """Ids of any shape, as whole numbers; one that is no row of the table is an error."""
    ids = _whole(ids)
    unique, positions, _ = _unique_of(table, tf.reshape(ids, [-1]))
    return tf.reshape(tf.gather(unique, positions), tf.shape(ids))


def _unique_of(
    table: ShardedVariable, ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Each id once, the place of every id among these, and whether there are any to look up."""
    examples = examples_module.current() if table.placement.partition.ranks > 1 else None
    unique, positions = library.load().dear_unique_ids(
        ids,
        rows=table.placement.partition.rows,
        label=table.placement.label,
        number=table.number,
    )
    return unique, positions, None if examples is None else examples.present


def _use_for_gradient_alone(output: tf.Tensor) -> None:
    """Says of what makes an output that it takes the table's handle for the gradient alone.

    As one more use of the table it would come before the next lookup in it, for which these vectors
    may wait.
    """
    order.run_when_ready(None if tf.executing_eagerly() else output.op)


def _whole(ids: tf.Tensor) -> tf.Tensor:
    """Ids as integers. What is not whole is cut off, as by Keras; NaN becomes what is no row."""
    if ids.dtype.is_integer and ids.dtype != tf.uint64:
        return ids
    whole = tf.cast(ids, tf.int64)
    return tf.where(tf.math.is_nan(ids), tf.int64.min, whole) if ids.dtype.is_floating else whole


def _vectors_of(
    table: ShardedVariable,
    ids: tf.Tensor,
    unique: tf.Tensor,
    positions: tf.Tensor,
    dtype: tf.DType,
    common: int = 0,
    pooling: bags_module.Pooling | None = None,
) -> tf.Tensor:
    """The whole vectors of this rank's ids, or sums: `unique` has each of them once."""
    placement = table.placement
    if placement.partition.ranks == 1:
        if common and table.strategy.extended.is_distributed_dear:
            unique = common_ids.check_own(
                unique, table.strategy.extended.collectives.all_gather, common, placement.label
            )
        return tf.cast(_held_of(table, unique)[0], dtype)
    ops = library.load()
    extended = table.strategy.extended
    beside = [] if pooling is None else [pooling.bags.bag_of, pooling.bags.count]
    group = extended.lookup_groups.group_for(ids, extended.reducer.order, beside)
    rows, columns = placement.shape
    name = variable_names.without_numbers(table.creation_path)
    name = f"{name} {rows} x {columns} {dtype.name}" + " pooled" * (pooling is not None)
    following = next_ids.next_of(ids) if extended.embedding_schedule == "2d" else None
    index = group.add(placement, table.number, name, following)
    if pooling is not None:
        group.may_pool(index, dtype)
    lookup = lookup_group.Lookup(group, index, unique, positions, dtype, pooling is not None)
    extended.lookup_groups.remember(ids, lookup)
    order.run_when_ready(
        ops.dear_contribute_ids(group.ticket, unique, index=index, number=table.number)
    )
    if pooling is not None:
        pooling.contribute(group.ticket, index)
    all_ids, counts, needed = ops.dear_gathered_ids(group.ticket, index=index)
    if common:
        checked = common_ids.check(all_ids, counts, common, placement.label)
        with tf.control_dependencies([checked]):
            needed = tf.identity(needed)
    held, version = _held_of(table, needed)
    held = tf.cast(held, dtype)
    if pooling is not None:
        held, pooled = pooling.held_of_bags(held, group.ticket, index, needed)
    order.run_when_ready(ops.dear_contribute_vectors(group.ticket, held, version, index=index))
    vectors = ops.dear_exchanged_vectors(group.ticket, T=dtype, index=index, columns=columns)
    return vectors if pooling is None else pooling.sums(vectors, pooled)


def look_up_early(table: ShardedVariable, lookup: lookup_group.Lookup) -> None:
    """Looks up for the next step what this step leaves as it is, but for its zero gradient.

    Call it where this step's update of the table was put off.
    """
    group, index, ops = lookup.group, lookup.index, library.load()
    ahead = group.ahead
    # What may be pooled is not looked up early: its ids alone are gathered.
    if lookup.may_be_pooled or not group.begin_early(index):
        return
    _, _, needed = ops.dear_gathered_ids(ahead, index=index)
    held, version = _held_of(table, needed, looks_ahead=True)
    held = tf.cast(held, lookup.dtype)
    order.run_when_ready(ops.dear_contribute_vectors(ahead, held, version, index=index))


def _held_of(
    table: ShardedVariable, ids: tf.Tensor, looks_ahead: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """What this rank holds of the vectors of ids, and the version of the table.

    It waits for what is in flight on these rows alone. `looks_ahead`: no layer waits for it.
    """
    return library.load().dear_table_lookup(
        table.raw_handle,
        ids,
        T=table.dtype,
        number=table.number,
        stride=table.placement.stride,
        offset=table.placement.offset,
        columns=table.placement.shard_shape[1],
        looks_ahead=looks_ahead,
    )
