# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Traces an optimizer update into a function that the engine runs when the gradient is there.

[Note: What an update owns]
An update runs later than the code around it, so it may touch only what is its own: the variable,
its optimizer slots, and whatever else it writes. These it reads and writes in place, and every
other reader waits for it. All that it only reads (the step counter, the learning rate) is read in
the calling graph, at the time of the call, and captured by value. What an update writes is not
known before it is traced; if the trace meets a write to a variable that it captured by value, it
starts again with that variable owned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import own_rows
from tfdear.gradients import sparse_rows

if TYPE_CHECKING:
    from tfdear.gradients.norms import Request
    from tfdear.gradients.sharded_variable import ShardedVariable
    from tfdear.gradients.variable import DearVariable

_Value = TypeVar("_Value")
Update: TypeAlias = "Callable[[DearVariable, sparse_rows.Gradient], None]"

_state = threading.local()


def current_trace() -> UpdateTrace | None:
    """The update that is being traced in this thread, if any."""
    return getattr(_state, "trace", None)


class _ForeignWrite(Exception):
    def __init__(self, variable: DearVariable):
        super().__init__(variable.name)
        self.variable = variable


class UpdateTrace:
    """Decides for every use of a variable inside an update: in place, if owned, or by value."""

    def __init__(self, outer: tf.Graph, owned: Iterable[DearVariable]):
        self._outer = outer
        self._owned = {id(variable): variable for variable in owned}
        self.written: dict[int, DearVariable] = {}
        # The sum that the update gets, if it is dense, and the norms it wants with it.
        self.gradient: tf.Tensor | None = None
        self.request: Request | None = None
        self.is_of_table = False  # It is of what a rank holds of a sharded table.

    def owns(self, variable: DearVariable) -> bool:
        return id(variable) in self._owned or id(variable.owner) in self._owned

    def record_write(self, variable: DearVariable) -> None:
        self.require_ownership(variable)
        self.written[id(variable)] = variable

    def require_ownership(self, variable: DearVariable) -> None:
        if not self.owns(variable):
            raise _ForeignWrite(variable)

    def read_by_value(self, read: Callable[[], _Value]) -> _Value:
        """Calls `read` in the graph that calls the update."""
        _state.trace = None
        try:
            with self._outer.as_default():
                return read()
        finally:
            _state.trace = self


@dataclasses.dataclass(frozen=True, eq=False)
class DeferredUpdate:
    """A traced update: the function, what it writes, and the norms it wants."""

    function: tf.types.experimental.ConcreteFunction
    written: list[DearVariable]
    # What it uses in place when it runs: all that it writes, and slots that it only reads.
    used: list[DearVariable]
    norms: Request | None
    # Which captured tensors are resources of others, which may change before a later run: variables
    # that no strategy of several ranks has made, tables, counters.
    foreign: list[int]

    @property
    def norms_argument(self) -> int:
        """Which captured tensor stands for the norms; -1: none are wanted."""
        if self.norms is None:
            return -1
        return [value is self.norms.result for value in self.function.captured_inputs].index(True)


def trace_update(
    variable: DearVariable, update: Update, gradient: sparse_rows.Gradient
) -> DeferredUpdate | None:
    """Traces `update(variable, gradient)` for a later run; of the gradient, type and shape matter.

    None if it uses something that is not safe to use later, or writes nothing that is awaited, so
    that it must run in program order. So must what draws random numbers: in a graph of its own,
    every update would draw the same.
    """
    sparse = isinstance(gradient, tf.IndexedSlices)
    values = gradient.values if sparse else gradient
    signature = [tf.TensorSpec(values.shape, values.dtype)]
    if sparse:
        signature.append(tf.TensorSpec([None], tf.int64))

    def body(trace: UpdateTrace, values: tf.Tensor, indices: tf.Tensor | None = None) -> None:
        if indices is not None:
            # The gradient may have its shape only when the step runs: one through a branch.
            shape = gradient.dense_shape
            if shape is not None:
                shape = tf.constant(variable.shape.as_list(), shape.dtype)
            indices = tf.cast(indices, gradient.indices.dtype)
            values = sparse_rows.sum_duplicates(tf.IndexedSlices(values, indices, shape))
        else:
            trace.gradient = values
        with _traced(trace):
            update(variable, values)

    traced = _retrace(variable, body, signature)
    if not traced.written or traced.foreign or own_rows.draws(traced.function.graph):
        return None
    return traced


def trace_table_update(
    variable: ShardedVariable,
    update: Callable[[ShardedVariable, tf.Tensor | None], None],
    spec: tf.TensorSpec | None,
) -> DeferredUpdate:
    """Traces `update(variable, gradient)` for what a rank holds of a table.

    Args:
        variable: The table or a slot of it.
        update: Called with the variable, which has the shape of this rank's part meanwhile, and the
            gradient, None where there is no `spec`.
        spec: Of the gradient of the part.

    Returns:
        The update. It may write nothing, and have foreign resources, for the caller to read in
        program order.
    """

    def body(trace: UpdateTrace, gradient: tf.Tensor | None = None) -> None:
        trace.is_of_table = True
        with _traced(trace):
            update(variable, gradient)

    # All slots of the table are the update's own.
    return _retrace(variable.table, body, [] if spec is None else [spec])


def _retrace(
    variable: DearVariable, body: Callable[..., None], signature: Sequence[tf.TensorSpec]
) -> DeferredUpdate:
    """Traces until it is known what the update owns."""
    outer = _tf_private.ops.get_default_graph()

    owned = [variable]
    while True:
        trace = UpdateTrace(outer, owned)
        try:
            function = tf.function(
                functools.partial(body, trace), autograph=False
            ).get_concrete_function(*signature)
            break
        except _ForeignWrite as met:
            owned.append(met.variable)

    foreign, used = [], dict(trace.written)
    for index, captured in enumerate(function.captured_inputs):
        if captured.dtype == tf.resource:
            captured_variable = _variable_of(captured)
            if captured_variable is None or not trace.owns(captured_variable):
                foreign.append(index)
            else:
                used[id(captured_variable)] = captured_variable
    written = list(trace.written.values())
    return DeferredUpdate(function, written, list(used.values()), trace.request, foreign)


@contextlib.contextmanager
def _traced(trace: UpdateTrace) -> Iterator[None]:
    _state.trace = trace
    try:
        yield
    finally:
        _state.trace = None


def _variable_of(handle: tf.Tensor) -> DearVariable | None:
    reference = getattr(handle, "_parent_trackable", None)
    variable = reference() if reference is not None else None
    return variable if hasattr(variable, "raw_handle") else None
