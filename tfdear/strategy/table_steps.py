# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Updates of sharded tables, as `extended.update` is asked for them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.gradients import sparse_rows, table_update
from tfdear.gradients.row_variable import RowVariable
from tfdear.gradients.sharded_variable import ShardedVariable


def update(
    extended: Any,
    device: str,
    variable: object,
    fn: Callable[..., object],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> bool:
    """Updates a table or a slot of one: deferred, if it gets a sum that is not there yet.

    False: the variable is neither, or a whole table whose update is not made by rows. Then it is
    for the caller to do.
    """
    if isinstance(variable, ShardedVariable):
        _update_part(extended, device, variable, fn, args, kwargs)
        return True
    return isinstance(variable, RowVariable) and _update_whole(
        extended, device, variable, fn, args, kwargs
    )


def _update_part(
    extended: Any,
    device: str,
    table: ShardedVariable,
    fn: Callable[..., object],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> None:
    has_gradient = bool(args) and isinstance(args[0], (tf.Tensor, tf.IndexedSlices))
    gradient = args[0] if has_gradient else None
    if isinstance(gradient, tf.Tensor) and gradient.shape[0] != table.placement.partition.rows:
        gradient = sparse_rows.all_rows(gradient, table.placement.shape)

    def of_part(variable: tf.Variable, part: tf.Tensor | None) -> None:
        with _tf_private.distribute_lib.UpdateContext(device):
            fn(variable, *((part, *args[1:]) if has_gradient else args), **kwargs)

    # With norms of the gradient its rows are here already.
    in_order = table.accumulated is not None and table.accumulated.needs_norms
    whole = table_update.with_what_belongs_to_it(table, of_part) if has_gradient else of_part

    def run(can_defer: bool) -> None:
        row_update = table_update.translate(table.table, table, whole, gradient)
        if row_update is None:
            return
        can_defer = can_defer and not (row_update.needs_sums or in_order)
        if not (can_defer and extended.reducer.defer_rows(row_update, gradient)):
            table_update.run_now(row_update, gradient)

    with tf.device(device):
        # What is traced reads variables where the update is called.
        if tf.executing_eagerly():
            if gradient is None and table.placement.partition.ranks > 1:
                # Another rank may still be reading what is before it. One with a gradient has to
                # wait for that of every rank.
                extended.collectives.barrier()
            # Traced also where functions run eagerly (`tf.config.run_functions_eagerly`).
            now = tf.function(lambda: run(can_defer=False), autograph=False)
            now.get_concrete_function()()
        else:
            run(can_defer=extended.is_distributed_dear)


def _update_whole(
    extended: Any,
    device: str,
    table: RowVariable,
    fn: Callable[..., object],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> bool:
    """Updates by rows; False if that is not possible, and then no row misses anything."""
    has_gradient = bool(args) and isinstance(args[0], (tf.Tensor, tf.IndexedSlices))
    gradient = args[0] if has_gradient else None
    with tf.device(device):
        if not tf.executing_eagerly() and not isinstance(gradient, tf.Tensor):

            def of_rows(variable: tf.Variable, rows: tf.Tensor | None) -> None:
                with _tf_private.distribute_lib.UpdateContext(device):
                    fn(variable, *((rows, *args[1:]) if has_gradient else args), **kwargs)

            try:
                # With sums of the whole it is no cheaper than Keras's update.
                row_update = table_update.translate(
                    table.table, table, of_rows, gradient, may_take_sums=False
                )
            except table_update.NotByRowsError:
                pass
            else:
                if row_update is None:
                    return True
                if row_update.is_of_table_alone():
                    if not extended.reducer.defer_rows(row_update, gradient):
                        table_update.run_now(row_update, gradient)
                    return True
        table.settle()
    return False
