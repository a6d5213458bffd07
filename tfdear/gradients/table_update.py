# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Updates of sharded tables, which cost what their rows cost.

[Note: Row updates]
An optimizer's update is traced with the shape of what this rank holds and translated into a program
(`elementwise_update`): what is element-wise may be done row by row, whenever a row is needed. Rows
that a step touches are updated when their gradients are there. The others have a gradient of zero,
with which many optimizers still move them; that is made up for when a row is next read
(`custom_ops/engine/updates/row_journal.h`). So the result is that of the dense gradient.

What needs norms of the table ([Note: Updates that need sums] in `elementwise_update`) needs all
rows up to date, and the gradients of all ranks, for every rank's share of the sums; these are added
up in the order of the ranks. Such an update runs in program order.
"""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import tensorflow as tf

from tfdear.engine import library
from tfdear.gradients import (
    deferred_update,
    elementwise_program,
    elementwise_update,
    whole_table,
)
from tfdear.gradients.placement import Placement
from tfdear.gradients.sharded_variable import ShardedVariable
from tfdear.gradients.sparse_rows import Gradient

Update: TypeAlias = Callable[[ShardedVariable, tf.Tensor | None], None]

# Whether updates without a gradient are what comes with the next one with a gradient.
_are_decays = contextvars.ContextVar("are_decays", default=False)


@contextlib.contextmanager
def decaying() -> Iterator[None]:
    """Within it, updates of tables without a gradient decay what the next ones with one update."""
    token = _are_decays.set(True)
    try:
        yield
    finally:
        _are_decays.reset(token)


class NotByRowsError(ValueError):
    """An update that cannot be done row by row."""


@dataclasses.dataclass(frozen=True, eq=False)
class RowUpdate:
    """A translated update of a table."""

    table: ShardedVariable  # Not a slot of it, even if it is only that which changes.
    traced: deferred_update.DeferredUpdate
    program: elementwise_program.Program
    # Which rows it is for, as DearChangeTable says it.
    rows: str = "all"
    needs_sums: bool = False  # Of the table: it can run in program order only, and at once.

    def is_of_table_alone(self) -> bool:
        """Whether it writes the table and its slots only."""
        return all(getattr(written, "table", None) is self.table for written in self.traced.written)

    def writes(self) -> list[int]:
        """The numbers of the variables whose reads wait for it.

        The table is one of them also where a slot alone changes, such as the sums of gradients:
        their changes come one after another, and a read of either has all that are before it.
        """
        written = [variable.number for variable in self.traced.written]
        return [*dict.fromkeys([*written, self.table.number])]

    def attributes(self) -> dict[str, Any]:
        """What an op that runs it has to know."""
        placement = self.table.placement
        return {
            "program": self.program.code,
            "program_variables": self.program.variables,
            "number": self.table.number,
            "stride": placement.stride,
            "offset": placement.offset,
            "first_column": placement.first_column,
        }


def translate(
    table: ShardedVariable,
    variable: ShardedVariable,
    update: Update,
    gradient: Gradient | None,
    may_take_sums: bool = True,
) -> RowUpdate | None:
    """Translates an update of a table or one of its slots; None if it changes nothing.

    `may_take_sums`: whether it may be element-wise but for sums of the whole table. Raises a
    NotByRowsError if rows cannot be updated one by one.
    """
    shape = tf.TensorShape(table.placement.shard_shape)
    spec = None if gradient is None else tf.TensorSpec(shape, table.dtype)
    try:
        traced = deferred_update.trace_table_update(variable, update, spec)
    except (ValueError, TypeError) as error:  # As where a slot has another shape than the table.
        raise NotByRowsError(_refusal(table.placement)) from error
    needs_sums = False

    def take_sums(summed: elementwise_program.Program, count: int) -> list[tf.Tensor]:
        nonlocal needs_sums
        needs_sums = True
        if table.placement.touched_only:
            raise NotByRowsError(_refusal_of_touched(table.placement))
        return _sums_over_ranks(RowUpdate(table, traced, summed), gradient, count)

    program = elementwise_update.translate(
        traced.function,
        shape,
        exact_bits=False,
        may_only_read=True,
        foreign=traced.foreign,
        take_sums=take_sums if may_take_sums else None,
    )
    if program is None:
        raise NotByRowsError(_refusal(table.placement))
    if not traced.written:  # As a weight decay from which the table is excluded.
        return None
    return RowUpdate(table, traced, program, _rows_of(table, variable, gradient), needs_sums)


def _rows_of(table: ShardedVariable, variable: ShardedVariable, gradient: Gradient | None) -> str:
    """Which rows an update of a table, or of one of its slots, is for."""
    if not table.placement.touched_only:
        return "all"
    if gradient is None:  # An average follows in every row, and replaces every row.
        return "touched" if variable is table and _are_decays.get() else "all"
    return "touched" if variable is table else "noted"  # The table; sums of gradients.


def with_what_belongs_to_it(table: ShardedVariable, update: Update) -> Update:
    """An update with a gradient, between the sums of earlier gradients and the constraint."""
    accumulated, table.accumulated = table.accumulated, None
    constraint, table.row_constraint = table.row_constraint, None
    if accumulated is None and constraint is None:
        return update

    def whole(variable: ShardedVariable, part: tf.Tensor | None) -> None:
        if accumulated is not None:
            part = accumulated.add_to(part)
        update(variable, part)
        if accumulated is not None:
            accumulated.slot.assign(tf.zeros_like(part))
        if constraint is not None:
            variable.assign(constraint(variable.read_value()))

    return whole


def sum_of_squares(table: ShardedVariable, gradient: Gradient) -> tf.Tensor:
    """Of all elements of the mean that the next update takes, scalar float32; on all ranks.

    Call it between the sum of the last gradients over the ranks and that update.
    """
    if tf.executing_eagerly():
        traced = tf.function(lambda: sum_of_squares(table, gradient), autograph=False)
        return traced.get_concrete_function()()
    accumulated = table.accumulated
    assert accumulated is not None  # What has none is clipped as other variables are.
    shape = tf.TensorShape(table.placement.shard_shape)
    sums: list[tf.Tensor] = []

    def square(variable: ShardedVariable, part: tf.Tensor | None) -> None:
        del variable
        total = tf.reduce_sum(tf.square(accumulated.add_to(part)))
        accumulated.slot.assign(tf.fill(shape, total))  # The program that asks for the sum.

    traced = deferred_update.trace_table_update(table, square, tf.TensorSpec(shape, table.dtype))

    def take_sums(summed: elementwise_program.Program, count: int) -> list[tf.Tensor]:
        sums.extend(_sums_over_ranks(RowUpdate(table, traced, summed), gradient, count))
        return sums

    elementwise_update.translate(
        traced.function,
        shape,
        exact_bits=False,
        may_only_read=True,
        foreign=traced.foreign,
        take_sums=take_sums,
    )
    return sums[0]


def _refusal(placement: Placement) -> str:
    return (
        f"The optimizer cannot update {placement.label}, of which every rank holds a part: its "
        "update is not element-wise, so that it cannot be done row by row. Give the table an "
        "optimizer of its own, such as keras.optimizers.Adam, with "
        "keras.optimizers.MultiOptimizer where your Keras has it, or use keras.layers.Embedding."
    )


def _refusal_of_touched(placement: Placement) -> str:
    return (
        f"The optimizer needs norms of all of {placement.label}, which change every row of it: "
        '`updates="touched"` does not work with that. Use `updates="exact"`, or give the table an '
        "optimizer of its own, such as keras.optimizers.Adam, with keras.optimizers.MultiOptimizer "
        "where your Keras has it, or use keras.layers.Embedding."
    )


def _sums_over_ranks(
    row_update: RowUpdate, gradient: Gradient | None, count: int
) -> list[tf.Tensor]:
    """The sums of what a program yields for all elements of a table, as scalars of float32."""
    table = row_update.table
    values, indices = _rows(table.placement, gradient)
    _await_written(row_update)
    with tf.device(table.device):
        sums = library.load().dear_table_sums(
            table.raw_handle,
            row_update.traced.function.captured_inputs,
            row_update.program.scalars,
            values,
            indices,
            sums=count,
            **row_update.attributes(),
        )
        ranks = table.placement.partition.ranks
        if ranks > 1:
            gathered = table.strategy.extended.collectives.all_gather(sums)
            of_ranks = tf.unstack(tf.reshape(gathered, [ranks, count]))
            # One after another, so that all ranks have the same bits.
            sums = functools.reduce(tf.add, of_ranks)
        return tf.unstack(tf.cast(sums, tf.float32), count)


def _await_written(row_update: RowUpdate) -> None:
    """Waits, in program order, for updates in flight on what an update writes, and on its table."""
    row_update.table.await_updates()
    for written in row_update.traced.written:
        if written is not row_update.table:
            written.await_updates()


def run_now(row_update: RowUpdate, gradient: Gradient | None) -> tf.Operation | None:
    """Runs an update in program order, on a gradient of the whole table that all ranks have."""
    table = row_update.table
    values, indices = _rows(table.placement, gradient)
    if gradient is not None:  # Its rows must not be behind an update that is in flight.
        _await_written(row_update)
    with tf.device(table.device):
        return library.load().dear_change_table(
            table.raw_handle,
            row_update.traced.function.captured_inputs,
            row_update.program.scalars,
            values,
            indices,
            rows=row_update.rows,
            **row_update.attributes(),
        )


def _rows(
    placement: Placement, gradient: Gradient | None
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    if gradient is None:
        return [], []
    if isinstance(gradient, tf.IndexedSlices):
        return [gradient.values], [tf.cast(gradient.indices, tf.int64)]
    # Dense: every row that this rank holds has one.
    part = whole_table.part_of(placement, gradient)
    return [part], [
        tf.range(placement.offset, placement.partition.rows, placement.stride, tf.int64)
    ]
