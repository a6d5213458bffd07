# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A table of which every rank holds a part, and which looks whole to everybody else.

[Note: Sharded tables]
The variable's resource has the rows and columns of this rank. `shape`, reads, writes, checkpoints
and gradients are those of the whole table. An optimizer's update runs on the part, by rows
(`table_update`), and lookups get vectors from all ranks (`table_lookup`).

[Note: Tables that a branch does not use]
Where a branch of a step uses a table and another one does not, TensorFlow makes the gradient of the
other one: zeros of the shape that the variable's resource has. So tapes know a table by a resource
of another shape, which has all columns and no rows. A gradient without rows is that of no word.
"""

import contextlib
import dataclasses
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.engine import library
from tfdear.gradients import deferred_update, table_lookup, whole_table
from tfdear.gradients import placement as placement_module
from tfdear.gradients import variable as variable_module

_TensorLike: TypeAlias = tf.types.experimental.TensorLike


@dataclasses.dataclass(frozen=True)
class Accumulated:
    """Sums of earlier gradients of a table, which its next update adds to its own."""

    slot: "ShardedVariable"
    steps: int  # What the sums are divided by.
    # What becomes of the mean of all steps, element by element. It may need norms of the mean:
    # these are of the table as it is at that point of the program.
    clip: Callable[[tf.Tensor], tf.Tensor] | None = None
    needs_norms: bool = False

    def add_to(self, part: tf.Tensor) -> tf.Tensor:
        """The mean of all steps. `part`: the last one's gradient, which is divided already."""
        mean = part + self.slot.read_value() / self.steps
        return mean if self.clip is None else self.clip(mean)


class ShardedVariable(variable_module.DearVariable):
    """A table or an optimizer's slot of one, of which this rank holds a part."""

    def __init__(self, *args: Any, placement: placement_module.Placement, **kwargs: Any):
        self.placement = placement
        self.shard_number = -1  # In the service that hands out its rows.
        # What belongs to the next update with a gradient.
        self.accumulated: Accumulated | None = None
        self.row_constraint: Callable[[tf.Tensor], tf.Tensor] | None = None
        # If it is a slot with such sums of a table of which only touched rows are updated: notes
        # which rows those are, from what this rank holds.
        self.note_rows: Callable[[tf.Tensor], None] | None = None
        self.was_assigned = False  # It may have other values than its first ones.
        # If only touched rows are updated: the optimizer that has done that.
        self.updated_by: weakref.ref[Any] | None = None
        # How a step knows what the next one looks up: "next batch" or "none".
        self.hint = "none"
        super().__init__(*args, **kwargs)
        with tf.init_scope():
            self._known_by = _tf_private.resource_variable_ops.ResourceVariable(
                tf.zeros([0, placement.partition.columns]), trainable=False
            )

    @property
    def table(self) -> "ShardedVariable":
        """The table: this variable, or the one whose slot it is."""
        return self if not isinstance(self.owner, ShardedVariable) else self.owner

    @property
    def shape(self) -> tf.TensorShape:
        if not self._is_created or self._is_seen_in_part():
            return tf.TensorShape(self.placement.shard_shape)
        return tf.TensorShape(self.placement.shape)

    # By it TensorFlow's C++ would read what this rank holds, without what rows missed. Without it
    # the variable is converted in Python, as any other argument of an eager op.
    @property
    def _handle(self) -> tf.Tensor | None:
        if self._is_created and tf.executing_eagerly() and not self._is_seen_in_part():
            return None
        return super()._handle

    @_handle.setter
    def _handle(self, handle: tf.Tensor) -> None:
        self._bare_handle = handle

    def __tf_tracing_type__(self, context: Any) -> Any:
        with variable_module.raw_handles():
            return super().__tf_tracing_type__(context)

    @property
    def handle(self) -> tf.Tensor:
        # Tapes ask for it, and what they do with it is no read: to wait here would be to wait for
        # rows that the step does not need.
        if self._is_created and not self._is_seen_in_part():
            return self.tape_handle
        return super().handle

    @property
    def tape_handle(self) -> tf.Tensor:
        return self._known_by.handle  # [Note: Tables that a branch does not use]

    def _is_seen_in_part(self) -> bool:
        return deferred_update.current_trace() is not None or variable_module.are_handles_raw()

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        trace = deferred_update.current_trace()
        if not self._is_created or variable_module.are_handles_raw():
            return super()._read_variable_op(no_copy)
        if trace is not None:
            if trace.owns(self):
                return super()._read_variable_op(no_copy)
            return trace.read_by_value(self.read_whole)
        return self.read_whole()

    def read_whole(self) -> tf.Tensor:
        """The whole table, from all ranks.

        In a graph it is a collective: call it on all ranks.
        """
        self.note_use()
        return whole_table.read_whole(self)

    def note_use(self) -> None:
        """Tells the tapes that record that the table is used."""
        _tf_private.resource_variable_ops.variable_accessed(self)

    def read_shard(
        self,
        begin: int | tf.Tensor = 0,
        end: int | tf.Tensor | None = None,
        changes: int | None = None,
    ) -> tf.Tensor:
        """What this rank holds of it, or of that its rows from `begin` to `end`.

        `changes`: how many it must have had, which must be complete; None: all so far.
        """
        rows, columns = self.placement.shard_shape
        if changes is None:
            self.table.await_updates()
        wanted = (begin, rows if end is None else end, -1 if changes is None else changes)
        wanted = tf.stack([tf.cast(number, tf.int64) for number in wanted])
        with tf.device(self.device):
            return library.load().dear_read_shard(
                self.table.raw_handle,
                self.raw_handle,
                wanted,
                T=self.dtype,
                number=self.table.number,
                columns=columns,
            )

    def read_rows(self, begin: int, end: int) -> np.ndarray:
        """Rows of the whole, from all ranks, at this point of the program; not in a graph."""
        if self.placement.partition.ranks == 1:
            return self.read_shard(begin, end).numpy()
        return self.strategy.extended.table_service.read_rows(self, begin, end)

    def changes(self) -> int:
        """How many changes the table has had, with all that are in flight."""
        self.table.await_updates()
        return int(self._changes()[0])

    def complete_changes(self) -> int:
        """How many changes are made already."""
        return int(self._changes()[1])

    def _changes(self) -> tf.Tensor:
        with tf.device(self.device):
            return library.load().dear_table_changes(
                self.table.raw_handle,
                number=self.table.number,
            )

    def sparse_read(self, indices: _TensorLike, name: str | None = None) -> tf.Tensor:
        if self._is_seen_in_part() or self.table is not self:
            return tf.gather(self._read_variable_op(), indices, name=name)
        return table_lookup.look_up(self, tf.convert_to_tensor(indices), self.dtype)

    def gather_nd(self, indices: _TensorLike, name: str | None = None) -> tf.Tensor:
        return tf.gather_nd(self._read_variable_op(), indices, name=name)

    def assign(
        self,
        value: _TensorLike,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        if self._is_seen_in_part():
            return super().assign(value, use_locking, name, read_value)
        value = tf.convert_to_tensor(value, self.dtype)
        if not self.shape.is_compatible_with(value.shape):
            raise ValueError(
                f"Cannot assign value to variable `{self.name}`: its shape is {self.shape}. "
                f"Received: a value of shape {value.shape}"
            )
        self.assign_shard(whole_table.part_of(self.placement, value))
        return self if read_value else None

    def assign_shard(self, value: tf.Tensor) -> None:
        """Replaces what this rank holds."""
        # Another rank may still be reading the old value.
        with self._after_barrier():
            if self.placement.partition.ranks > 1:
                self.strategy.extended.lookup_groups.close()
            # What rows missed concerns the old values of this variable, and the others stay.
            self._settle(forgets_noted=self.note_rows is not None)
            with variable_module.raw_handles():
                written = super().assign(value, read_value=False)
        # Who reads the whole now gets what all have written.
        with self._after_barrier(written):
            self.was_assigned = True
            if self.note_rows is not None:
                self.note_rows(value)

    def prepare_for_slot(self) -> None:
        """Lets go of the slots of former optimizers, before a table gets another one."""
        # Another rank may still be reading what rows were some changes ago.
        with self._after_barrier():
            self._settle()

    def _settle(self, forgets_noted: bool = False) -> None:
        """Makes up for all that rows missed, at this point of the program."""
        slots = [] if self.table is self else [self]
        self.table.await_updates(*slots)
        with tf.device(self.device):
            library.load().dear_settle_table(
                self.table.raw_handle,
                [slot.raw_handle for slot in slots],
                number=self.table.number,
                forgets_noted=forgets_noted,
            )

    def _after_barrier(
        self, written: tf.Operation | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Within it, all ranks have come as far; in a graph, after a write."""
        if self.placement.partition.ranks == 1:
            return contextlib.nullcontext()
        with tf.control_dependencies([] if written is None else [written]):
            barrier = self.strategy.extended.collectives.barrier()
        return tf.control_dependencies([] if barrier is None else [barrier])

    def assign_add(
        self,
        delta: _TensorLike,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        if self._is_seen_in_part():
            return super().assign_add(delta, use_locking, name, read_value)
        return self.assign(self.read_whole() + delta, read_value=read_value)

    def assign_sub(
        self,
        delta: _TensorLike,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        if self._is_seen_in_part():
            return super().assign_sub(delta, use_locking, name, read_value)
        return self.assign(self.read_whole() - delta, read_value=read_value)

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> object:
        (value,) = restored_tensors.values()
        return self.assign(value)

    def write(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._is_seen_in_part():
            return super().write(method, *args, **kwargs)
        raise NotImplementedError(
            f"`{method.__name__}` does not work on `{self.name}`, a sharded table: every rank "
            "holds a part of it. Use `assign` with a value for the whole table."
        )
