# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Tables that every rank has whole, of which a step looks up and updates rows.

[Note: Tables of plain layers]
The table of a plain `keras.layers.Embedding` belongs to its user's code, which may do anything with
it. To all of that it is a variable as any other. Only two things are done row by row, both in a
step: lookups of the layer, and updates that are element-wise ([Note: Row updates]). Rows may then
miss updates; whatever else uses the variable makes up for that first, for all rows (`settle`), and
finds what dense updates would have left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.engine import library
from tfdear.gradients import deferred_update, table_lookup
from tfdear.gradients import placement as placement_module
from tfdear.gradients import variable as variable_module

_TensorLike: TypeAlias = tf.types.experimental.TensorLike


class RowVariable(variable_module.DearVariable):
    """A whole table, or an optimizer's slot of one."""

    def __init__(self, *args: Any, placement: placement_module.Placement, **kwargs: Any):
        self.placement = placement
        # As of tables in parts; what belongs to an update of these is in Keras's own hands.
        self.accumulated: None = None
        self.row_constraint: None = None
        super().__init__(*args, **kwargs)

    @property
    def table(self) -> RowVariable:
        """The table: this variable, or the one whose slot it is."""
        return self if not isinstance(self.owner, RowVariable) else self.owner

    def note_use(self) -> None:
        """Tells the tapes that record that the table is used."""
        _tf_private.resource_variable_ops.variable_accessed(self)

    def settle(self) -> None:
        """Makes up for all that rows missed, at this point of the program."""
        table = self.table
        slots = [] if table is self else [self]
        table.await_updates(*slots)
        with tf.device(self.device):
            library.load().dear_settle_table(
                table.raw_handle, [slot.raw_handle for slot in slots], number=table.number
            )

    def _settle_for_use(self) -> None:
        if (
            self._is_created
            and not variable_module.are_handles_raw()
            and deferred_update.current_trace() is None
            and not _tf_private.save_context.in_save_context()
        ):
            self.settle()

    @property
    def _handle(self) -> tf.Tensor:
        if tf.executing_eagerly():
            self._settle_for_use()
        return super()._handle

    @_handle.setter
    def _handle(self, handle: tf.Tensor) -> None:
        self._bare_handle = handle

    @property
    def handle(self) -> tf.Tensor:
        # In a step tapes take it, to know the variable by.
        if not _is_in_step():
            self._settle_for_use()
        return super().handle

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        self._settle_for_use()
        return super()._read_variable_op(no_copy)

    def look_up(self, ids: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """The vectors of ids of any shape, in the given type."""
        if self._is_created and _is_in_step() and deferred_update.current_trace() is None:
            # Not for its rows alone: an update that is not made by rows may be in flight.
            self.await_updates()
            return table_lookup.look_up(self, ids, dtype)
        return tf.cast(self.sparse_read(ids), dtype)

    def sparse_read(self, indices: _TensorLike, name: str | None = None) -> tf.Tensor:
        self._settle_for_use()
        return super().sparse_read(indices, name)

    def gather_nd(self, indices: _TensorLike, name: str | None = None) -> tf.Tensor:
        self._settle_for_use()
        return super().gather_nd(indices, name)

    def write(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # What rows missed concerns the old values of this variable, and its slots stay.
        self._settle_for_use()
        return super().write(method, *args, **kwargs)


def _is_in_step() -> bool:
    """Whether ops are being built for a step in `strategy.run`."""
    return getattr(tf.distribute.get_replica_context(), "reconciles", False)
