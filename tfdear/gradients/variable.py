# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The variables of a distributed `DearStrategy`."""

from __future__ import annotations

import contextlib
import enum
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import step_data
from tfdear.engine import library
from tfdear.gradients import deferred_update, forward_marks, own_value

_Base: TypeAlias = _tf_private.resource_variable_ops.ResourceVariable
_TensorLike: TypeAlias = tf.types.experimental.TensorLike
_state = threading.local()


class Reconciliation(enum.Enum):
    """What becomes of values that ranks write into a variable inside `strategy.run`."""

    # Nothing: every rank writes the same (step counters), or only updates write.
    NONE = "none"
    # Every rank has its own value, and they are added up: metrics. See [Note: Own values].
    SUM = "sum"
    # The ranks' values are averaged: moving statistics of BatchNormalization.
    MEAN = "mean"
    # The values that the ranks write are added up at once: counters of a script.
    SUM_OF_WRITES = "sum of writes"
    # The value that rank 0 writes.
    FIRST = "first"


@contextlib.contextmanager
def identical_writes() -> Iterator[None]:
    """Within it, variables are created whose writes are the same on all ranks: Keras's counters."""
    previous = are_writes_identical()
    _state.identical_writes = True
    try:
        yield
    finally:
        _state.identical_writes = previous


def are_writes_identical() -> bool:
    """Whether the caller is within `identical_writes`."""
    return getattr(_state, "identical_writes", False)


@contextlib.contextmanager
def raw_handles() -> Iterator[None]:
    """Within it, `handle` is the bare handle: the caller has awaited the variable itself."""
    previous = getattr(_state, "raw", False)
    _state.raw = True
    try:
        yield
    finally:
        _state.raw = previous


def are_handles_raw() -> bool:
    """Whether the caller is within `raw_handles`."""
    return getattr(_state, "raw", False)


class ReconcilingContext(Protocol):
    """Where writes concern the other ranks: a `DearReplicaContext`."""

    def settle(self, variable: DearVariable) -> None:
        """Adds up what the ranks wrote into a sum, before it is read."""

    def read_own(self, own: own_value.OwnValue) -> tf.Tensor:
        """The value of this rank alone."""

    def assign(
        self, variable: DearVariable, value: _TensorLike, read_value: bool
    ) -> DearVariable | None:
        """Writes a value."""

    def assign_add(
        self, variable: DearVariable, delta: _TensorLike, read_value: bool
    ) -> DearVariable | None:
        """Adds to the value."""

    def note_read(self, variable: DearVariable, value: tf.Tensor) -> None:
        """Takes notice of a read."""

    def write_part(
        self,
        variable: DearVariable,
        method: str,
        write: Callable[[], object],
        arguments: Mapping[str, Any],
    ) -> DearVariable | None:
        """Writes some elements."""


class DearVariable(_Base):
    """A variable whose every use waits for the updates in flight on it.

    Program order decides what a read sees, whatever the time at which updates run: each use of
    `handle` (reads, gathers, assignments, checkpoints) adds an op that completes when nothing is
    pending on the variable. See "Deferred updates" in `custom_ops/README.md`.

    `number` is the engine's, and `owner` the variable whose update writes this one, an optimizer's
    slot. `is_drawn_by_rank`: ranks have other values, as the states of generators.
    """

    def __init__(
        self,
        *args: Any,
        creation_path: str,
        number: int,
        owner: DearVariable | None,
        reconciliation: Reconciliation,
        is_drawn_by_rank: bool = False,
        **kwargs: Any,
    ):
        self._is_created = False  # No updates can be in flight while the variable is being created.
        self.number = number
        self.creation_path = creation_path
        self.owner = owner
        self.reconciliation = reconciliation
        self.is_drawn_by_rank = is_drawn_by_rank
        super().__init__(*args, **kwargs)
        self.own: own_value.OwnValue | None = None
        if reconciliation is Reconciliation.SUM:
            with tf.init_scope():
                strategy = self._distribute_strategy
                self.own = own_value.OwnValue(
                    super()._read_variable_op(), strategy.rank, strategy.world_size
                )
        self._is_created = True

    @property
    def strategy(self) -> tf.distribute.Strategy:
        """The `DearStrategy` that created the variable."""
        return self._distribute_strategy

    @property
    def raw_handle(self) -> tf.Tensor:
        return self._bare_handle

    @property
    def tape_handle(self) -> tf.Tensor:
        """What tapes know the variable by."""
        return self._bare_handle

    # TensorFlow's C++ takes this attribute of a variable that is an argument of an eager op, as in
    # `tf.maximum(variable, 0)`, and reads the value without anything else here.
    @property
    def _handle(self) -> tf.Tensor:
        if not self._is_created or are_handles_raw() or not tf.executing_eagerly():
            return self._bare_handle
        context = _reconciling_context(self)
        if context is not None and self.own is not None:
            if not own_value.is_reading_sums():
                return self.own.handle
            context.settle(self)
        self.await_updates()
        return self._bare_handle

    @_handle.setter
    def _handle(self, handle: tf.Tensor) -> None:
        self._bare_handle = handle

    @property
    def handle(self) -> tf.Tensor:
        if not self._is_created or are_handles_raw():
            return self._bare_handle
        trace = deferred_update.current_trace()
        if trace is not None:
            trace.require_ownership(self)
        else:
            self.await_updates()
        return self._bare_handle

    def await_updates(self, *others: DearVariable) -> None:
        """Adds the op that later uses of it, and of others, in program order wait for."""
        # A SavedModel is loaded where nothing is in flight.
        if not _tf_private.save_context.in_save_context():
            awaited = [self, *others]
            with step_data.required():
                library.load().dear_await(
                    handles=[variable.raw_handle for variable in awaited],
                    variables=[variable.number for variable in awaited],
                )
            forward_marks.mark(self.number)

    # Properties that do not depend on the value: no reason to wait.
    @property
    def device(self) -> str:
        return self._bare_handle.device

    @property
    def graph(self) -> tf.Graph:
        return self._bare_handle.graph

    @property
    def op(self) -> tf.Operation:
        return self._bare_handle.op

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        trace = deferred_update.current_trace()
        if self.is_drawn_by_rank:
            _check_not_in_update(self, trace)
        if trace is not None and not trace.owns(self):
            return trace.read_by_value(lambda: self._read_variable_op(no_copy))
        if trace is None and self._is_created and not are_handles_raw():
            replica_context = _reconciling_context(self)
            if replica_context is not None and self.own is not None:
                if not own_value.is_reading_sums():
                    return replica_context.read_own(self.own)
                replica_context.settle(self)
            self.await_updates()
            with raw_handles():
                value = super()._read_variable_op(no_copy)
            if replica_context is not None or self.is_drawn_by_rank:
                _note_read(self, value)
            return value
        with raw_handles():
            return super()._read_variable_op(no_copy)

    def sparse_read(self, indices: _TensorLike, name: str | None = None) -> tf.Tensor:
        if self._is_read_by_value():
            return tf.gather(self._read_variable_op(), indices, name=name)
        return super().sparse_read(indices, name)

    def gather_nd(self, indices: _TensorLike, name: str | None = None) -> tf.Tensor:
        if self._is_read_by_value():
            return tf.gather_nd(self._read_variable_op(), indices, name=name)
        return super().gather_nd(indices, name)

    def _is_read_by_value(self) -> bool:
        # An update captures whole values; and a rank's own value is in another variable.
        trace = deferred_update.current_trace()
        if trace is not None:
            return not trace.owns(self)
        return self.own is not None and _reconciling_context(self) is not None

    def write(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a writing method of the base class after the updates in flight."""
        trace = deferred_update.current_trace()
        if trace is not None:
            trace.record_write(self)
        elif not are_handles_raw():
            self.await_updates()
            if self.own is not None:
                with raw_handles():
                    result = method(self, *args, **kwargs)
                    self.own.take_part_of(self._read_variable_op())
                return result
        with raw_handles():
            return method(self, *args, **kwargs)

    def assign(
        self,
        value: _TensorLike,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> DearVariable | tf.Operation | None:
        context = _reconciling_context(self)
        if context is not None:
            return context.assign(self, value, read_value)
        return self.write(_Base.assign, value, use_locking, name, read_value)

    def assign_add(
        self,
        delta: _TensorLike,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> DearVariable | tf.Operation | None:
        context = _reconciling_context(self)
        if context is not None:
            return context.assign_add(self, delta, read_value)
        return self.write(_Base.assign_add, delta, use_locking, name, read_value)

    def assign_sub(
        self,
        delta: _TensorLike,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> DearVariable | tf.Operation | None:
        context = _reconciling_context(self)
        if context is not None:
            delta = tf.convert_to_tensor(delta, self.dtype)
            return context.assign_add(self, -delta, read_value)
        return self.write(_Base.assign_sub, delta, use_locking, name, read_value)


def _check_not_in_update(variable: DearVariable, trace: object) -> None:
    context = tf.distribute.get_replica_context()
    if trace is not None or not getattr(context, "reconciles", True):
        raise NotImplementedError(
            f"an optimizer's update draws by `{variable.name}`, the state of a generator, which "
            "differs between ranks: they would end up with different weights. Draw by "
            "`tf.random`, which is the same on all ranks in an update, or create the strategy "
            "with `shared_seeds=True`."
        )


def _note_read(variable: DearVariable, value: tf.Tensor) -> None:
    context = tf.distribute.get_replica_context()
    if (note := getattr(context, "note_read", None)) is not None:
        note(variable, value)


def _reconciling_context(variable: DearVariable) -> ReconcilingContext | None:
    """The replica context in which a write to this variable concerns the other ranks, or None."""
    if variable.reconciliation is Reconciliation.NONE or are_handles_raw():
        return None
    if deferred_update.current_trace() is not None:
        return None
    context = tf.distribute.get_replica_context()
    return context if getattr(context, "reconciles", False) else None


def _add_write_method(name: str) -> None:
    base = getattr(_Base, name)
    signature = inspect.signature(base)

    def method(self: DearVariable, *args: Any, **kwargs: Any) -> Any:
        context = _reconciling_context(self)
        if context is None or name == "_restore_from_tensors":
            return self.write(base, *args, **kwargs)
        arguments = signature.bind(self, *args, **kwargs).arguments
        return context.write_part(self, name, lambda: self.write(base, *args, **kwargs), arguments)

    method.__name__ = name
    method.__doc__ = base.__doc__
    setattr(DearVariable, name, method)


# The other methods that write: into parts of the variable, except the last, which restores it.
for _name in (
    "scatter_sub",
    "scatter_add",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_div",
    "scatter_update",
    "batch_scatter_update",
    "scatter_nd_sub",
    "scatter_nd_add",
    "scatter_nd_update",
    "scatter_nd_max",
    "scatter_nd_min",
    "_strided_slice_assign",
    "_restore_from_tensors",
):
    _add_write_method(_name)
