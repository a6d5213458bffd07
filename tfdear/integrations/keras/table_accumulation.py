# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Gradients of sharded tables that are accumulated over several steps.

Elsewhere a rank accumulates gradients of its own, and they are summed over the ranks when they are
applied. Of a table that would take a whole one on every rank. So here each step's rows go to the
ranks that hold them, which accumulate sums, in parts like those of the table. The last step's
update adds them to its own gradient, for all rows of the table, or for those that one of the steps
touched, and sets them to zero.
"""

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.gradients.sharded_variable import Accumulated, ShardedVariable
from tfdear.gradients.sparse_rows import Gradient

SEAMS = seams.Seams()
NAME = "gradient_accumulator"  # What Keras calls the slot.


class TableAccumulator:
    """What an optimizer has among its accumulators for a table.

    Keras computes `(gradient + accumulator) / steps`, which here is the gradient's part of it; the
    accumulator's comes in the update.
    """

    # Keras sets an accumulator to zeros of its shape; the update has done that already.
    shape = ()
    dtype = "float32"

    def __init__(self, slot: ShardedVariable):
        self.slot = slot
        if slot.placement.touched_only:
            slot.note_rows = functools.partial(_note_rows, slot)
            if slot.was_assigned:  # A checkpoint had its value, and waited for it to be created.
                with tf.init_scope():
                    slot.note_rows(slot.read_shard())

    def __radd__(self, gradient: Gradient) -> "_Sum":
        return _Sum(gradient, self.slot)

    def assign(self, value: Any) -> None:
        """Does nothing."""


class _Sum:
    def __init__(self, gradient: Gradient, slot: ShardedVariable):
        self._gradient = gradient
        self._slot = slot

    def __truediv__(self, steps: int) -> Gradient:
        self._slot.table.accumulated = Accumulated(self._slot, steps)
        gradient = self._gradient
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(gradient.values / steps, gradient.indices, gradient.dense_shape)
        return gradient / steps


def has_tables(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether an optimizer accumulates gradients of sharded tables."""
    if not optimizer.gradient_accumulation_steps:
        return False
    return any(isinstance(each, TableAccumulator) for each in optimizer._accumulated_gradients)


@SEAMS.wrap(_keras_private.INCREMENT_ACCUMULATORS)
def _accumulate_sums(
    original: seams.Original,
    optimizer: keras.optimizers.Optimizer,
    grads: Sequence[Gradient],
    acc_grads: Sequence[Any],
) -> None:
    of_tables = [
        (gradient, accumulator.slot)
        for gradient, accumulator in zip(grads, acc_grads, strict=True)
        if isinstance(accumulator, TableAccumulator)
    ]
    others = [
        (gradient, accumulator)
        for gradient, accumulator in zip(grads, acc_grads, strict=True)
        if not isinstance(accumulator, TableAccumulator)
    ]
    if others:
        original(optimizer, *map(list, zip(*others, strict=True)))
    if not of_tables:
        return
    for total, slot in optimizer._all_reduce_sum_gradients(of_tables):
        slot.strategy.extended.update(slot, _add, args=(total,))


def _add(slot: ShardedVariable, total: tf.Tensor) -> None:
    slot.assign_add(total)


def _note_rows(slot: ShardedVariable, sums: tf.Tensor) -> None:
    # What a file has are sums, not which rows steps have touched: those that have sums.
    placement = slot.placement
    partition = placement.partition
    flags = tf.reduce_any(sums != 0, 1)
    if partition.ranks > 1 and partition.kind == "column":  # A row is zero if all of its parts are.
        of_ranks = slot.strategy.extended.collectives.all_gather(tf.cast(flags, tf.uint8))
        flags = tf.reduce_any(tf.reshape(of_ranks, [partition.ranks, -1]) > 0, 0)
    rows = tf.where(flags)[:, 0]
    zeros = tf.zeros([tf.size(rows), placement.shard_shape[1]])
    shape = tf.constant(placement.shape, tf.int64)
    touched = tf.IndexedSlices(zeros, rows * placement.stride + placement.offset, shape)
    slot.strategy.extended.update(slot, _add, args=(touched,))
