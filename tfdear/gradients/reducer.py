# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Sums over ranks as ops: contributions go into the engine, sums come out, updates wait for them.

[Note: Contribute, then read or defer]
A reduction is one op that takes a ticket in the order of collectives (at once, in program order),
one op per tensor that hands the rank's contribution to the engine (when the backward pass has it),
and one op per tensor that yields the sum. The last are stateless: where every sum goes into an
optimizer update, the updates are deferred instead (`defer`), nothing reads the sums in the graph,
and TensorFlow prunes those ops, so the step ends without waiting for the network.
"""

import contextlib
import contextvars
import dataclasses
import types
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.base import names
from tfdear.data import step_data
from tfdear.engine import engine as engine_module
from tfdear.engine import first_plan as first_plan_module
from tfdear.engine import library, plan
from tfdear.gradients import (
    deferred_update,
    elementwise_update,
    graph_notes,
    lookup_group,
    order,
    row_travel,
    sparse_rows,
    table_lookup,
    table_update,
    variable_names,
)
from tfdear.gradients import variable as variable_module
from tfdear.gradients.sharded_variable import ShardedVariable
from tfdear.gradients.sparse_rows import Gradient

# The engine's DataType, by TensorFlow's.
_DATA_TYPES = {tf.as_dtype(name): number for number, name in enumerate(names.DATA_TYPES)}
# A layout is never freed, and the shapes of eager calls may change in every step: beyond this
# number, one layout serves all shapes, with sizes that are known at run time only.
_MAX_EAGER_LAYOUTS = 256
_NO_VARIABLE = -1
# The lookups whose ids the rows of tensors have, among the notes of a graph: by ticket and place.
_LOOKUPS = "lookups_of_rows"
# The momentum of the optimizer whose gradients are being summed; None: there is none.
_momentum: contextvars.ContextVar[float | None] = contextvars.ContextVar("momentum", default=None)


@contextlib.contextmanager
def for_optimizer(momentum: float) -> Iterator[None]:
    """Within it, sums are for an optimizer that applies this momentum to them."""
    token = _momentum.set(momentum)
    try:
        yield
    finally:
        _momentum.reset(token)


def is_for_xla() -> bool:
    """Whether ops are being built for XLA."""
    graph = step_data.current_graph()
    return graph is not None and _tf_private.control_flow_util.GraphOrParentsInXlaContext(graph)


def check_not_xla() -> None:
    """Raises if ops are being built for XLA."""
    if is_for_xla():
        raise ValueError(
            "`jit_compile=True` does not work under tfdear.DearStrategy: XLA compiles a step into "
            "one program, in which neither collectives nor updates can overlap with computation. "
            'Pass `jit_compile=False` (or leave it at "auto") to `model.compile` or `tf.function`.'
        )


class Reducer:
    """Builds reductions for one strategy.

    `on_layout` is called with each new layout of gradients: its number, names, tensors and numbers
    of variables; names and numbers may still change until its first use.
    """

    def __init__(
        self,
        engine: engine_module.Engine,
        device: str,
        first_plan: first_plan_module.FirstPlan,
        on_layout: Callable[[int, list[str], list[plan.TensorSpec], list[int]], None] | None = None,
        travel: row_travel.RowTravel | None = None,
    ):
        self._engine = engine
        self._first_plan = first_plan
        self._on_layout = on_layout
        self.travel = travel or row_travel.RowTravel(engine, None)
        self.device = device
        self.lookups = lookup_group.LookupGroups(engine)
        # The tensors of each layout of a graph, and their names.
        self._tensors: dict[int, list[plan.TensorSpec]] = {}
        self._names: dict[int, list[str]] = {}
        # The numbers of the variables whose gradients the tensors of each layout are.
        self._variables: dict[int, list[int]] = {}
        # Layouts of eager calls, by lane: the ranks of a lane's group have made the same calls, so
        # they all run out of layouts at the same call.
        self._eager_layouts: dict[
            names.Lane, dict[tuple[str, tuple[plan.TensorSpec, ...]], int]
        ] = {}
        # A resource without content: the ops that take tickets share it, so automatic control
        # dependencies keep them in program order.
        with tf.init_scope(), tf.device(device):
            self._order = tf.Variable(0, trainable=False, name="tfdear_order")

    @property
    def order(self) -> tf.Tensor:
        return self._order.handle

    def all_reduce(
        self,
        values: Sequence[Gradient],
        *,
        name: str,
        lane: names.Lane = names.Lane.CONTROL,
        active: tf.Tensor | None = None,
        weight: tf.Tensor | None = None,
    ) -> list[Gradient]:
        """The sums of tensors over the ranks, and the gathered rows of `tf.IndexedSlices`.

        Args:
            values: Tensors or `tf.IndexedSlices`, the same structure on all ranks.
            name: What the values are, for error messages.
            lane: Where the reduction queues. One whose sums updates wait for moves to the
                gradients' lane.
            active: Scalar bool; where false, this rank contributes nothing.
            weight: Scalar float64, by which this rank's values are multiplied; where 0, it
                contributes nothing, whatever they are. Takes the place of `active`.
        """
        check_not_xla()
        values = [check_type(value) for value in values]
        ops = library.load()
        with tf.device(self.device):
            if weight is None:
                everything = tf.constant(1.0, tf.float64)
                weight = everything if active is None else tf.cast(active, tf.float64)
            layout = self._layout(values, name, lane)
            with step_data.required(), step_data.read(), order.in_program_order():
                ticket = ops.dear_open_reduction(self.order, layout=layout)
            # The last one first: the order in which the backward pass yields gradients.
            contributions = [
                self._contribute(ops, ticket, index, values[index], weight)
                for index in reversed(range(len(values)))
            ]
            with order.after(contributions):
                return [_reduced(ops, ticket, index, value) for index, value in enumerate(values)]

    def _layout(self, values: Sequence[Gradient], name: str, lane: engine_module.Lane) -> int:
        specs = tuple(_spec(value) for value in values)
        eager = tf.executing_eagerly()
        if eager:
            layouts = self._eager_layouts.setdefault(lane, {})
            if (name, specs) not in layouts and len(layouts) >= _MAX_EAGER_LAYOUTS:
                specs = tuple(dataclasses.replace(spec, count=-1, bytes=0) for spec in specs)
            if (name, specs) in layouts:
                return layouts[name, specs]
        layout = self._engine.create_layout(name, lane)
        for spec in specs:
            self._engine.add_tensor(layout, spec.data_type, spec.count, spec.sparse)
        self._engine.set_plan(layout, self._first_plan.encode(specs, lane))
        if eager:
            layouts[name, specs] = layout
        else:
            if (momentum := _momentum.get()) is not None:
                self._engine.set_optimizer(layout, momentum)
            self._tensors[layout] = list(specs)
        return layout

    def _contribute(
        self,
        ops: types.ModuleType,
        ticket: tf.Tensor,
        index: int,
        value: Gradient,
        weight: tf.Tensor,
    ) -> tf.Operation | None:
        if isinstance(value, tf.IndexedSlices):
            lookup = self.lookups.lookup_of(value.indices)
            if lookup is None:
                rows, indices = sparse_rows.unique(value.values, value.indices)
                known, table = [], 0
            else:
                rows, indices = sparse_rows.of_lookup(value.values, lookup)
                known, table = [lookup.ticket], lookup.index
                if tf.is_symbolic_tensor(ticket):
                    graph_notes.of(ticket.graph, _LOOKUPS)[ticket.name, index] = lookup
            op = ops.dear_contribute_rows(
                ticket, rows, indices, weight, known, index=index, table_of_lookup=table
            )
        else:
            op = ops.dear_contribute(ticket, value, weight, index=index)
        order.run_when_ready(op)  # When the backward pass has the gradient.
        return op

    def defer(
        self,
        variable: variable_module.DearVariable,
        update: deferred_update.Update,
        gradient: Gradient,
    ) -> bool:
        """Defers `update(variable, gradient)` until the sum is there, if that is possible.

        False if the update must run in program order: the gradient was changed after the reduction,
        or comes from another graph, or the update uses something that could change before it runs.
        """
        source = _reduced_op(gradient)
        if source is None:
            return False
        traced = deferred_update.trace_update(variable, update, gradient)
        if traced is None:
            return False
        graph = source.graph
        traced.function.add_to_graph(graph)
        # The function lives as long as the graph that calls it: its kernel waits for its updates.
        graph.add_to_collection("tfdear_deferred_updates", traced)
        ticket, index = source.inputs[0], source.get_attr("index")
        layout = ticket.op.get_attr("layout")
        self._move_to_gradients(ticket, layout, index, variable)
        sparse = isinstance(gradient, tf.IndexedSlices)
        if sparse:
            self.travel.tell(layout, index, variable)
        norms = traced.norms
        if norms is not None:
            self._engine.request_norms(layout, index)
        for used in traced.used:
            used.await_updates()
        with tf.device(self.device):
            program = None
            if not sparse and norms is None:
                program = elementwise_update.translate(traced.function, variable.shape)
            library.load().dear_defer_update(
                ticket,
                traced.function.captured_inputs,
                [] if norms is None else [used.raw_handle for used in norms.variables],
                [] if norms is None else norms.step,
                [] if program is None else program.scalars,
                [],
                [],
                program=[] if program is None else program.code,
                program_variables=[] if program is None else program.variables,
                norms="none" if norms is None else norms.kind,
                norms_argument=traced.norms_argument,
                f=traced.function,
                T=(gradient.values if sparse else gradient).dtype,
                index=index,
                sparse=sparse,
                writes=[used.number for used in traced.used],
            )
        return True

    def defer_rows(self, row_update: table_update.RowUpdate, gradient: Gradient | None) -> bool:
        """Defers the update of a sharded table until the rows of its gradient are there.

        False if it must run in program order, as in `defer`.
        """
        if not isinstance(gradient, tf.IndexedSlices):
            return False
        source = _reduced_op(gradient)
        if source is None:
            return False
        table, traced = row_update.table, row_update.traced
        source.graph.add_to_collection("tfdear_deferred_updates", traced)
        traced.function.add_to_graph(source.graph)
        ticket, index = source.inputs[0], source.get_attr("index")
        layout = ticket.op.get_attr("layout")
        self._move_to_gradients(ticket, layout, index, table)
        self.travel.tell(layout, index, table)
        if table.placement.partition.ranks > 1:
            self._engine.set_partition(layout, index, table.placement.column_begins)
        lookup = None
        if table.placement.partition.ranks > 1:
            lookup = graph_notes.of(source.graph, _LOOKUPS).get((ticket.name, index))
        # Its rows are in order by themselves: several updates of them may be in flight.
        for written in traced.written:
            if not isinstance(written, ShardedVariable):
                written.await_updates()
        with tf.device(self.device):
            library.load().dear_defer_update(
                ticket,
                traced.function.captured_inputs,
                [],
                [],
                row_update.program.scalars,
                [table.raw_handle],
                [] if lookup is None else [lookup.ticket],
                table_of_lookup=0 if lookup is None else lookup.index,
                f=traced.function,
                T=gradient.values.dtype,
                index=index,
                sparse=True,
                writes=row_update.writes(),
                rows=row_update.rows,
                **row_update.attributes(),
            )
            if lookup is not None and lookup.group.looks_ahead:
                table.hint = "next batch"
                table_lookup.look_up_early(table, lookup)
        return True

    def _move_to_gradients(
        self, ticket: tf.Tensor, layout: int, index: int, variable: variable_module.DearVariable
    ) -> None:
        if layout not in self._names:
            count = len(self._tensors[layout])
            self._names[layout] = [f"tensor {number}" for number in range(count)]
            self._variables[layout] = [_NO_VARIABLE] * count
            self._engine.set_lane(layout, names.Lane.GRADIENTS)
            first = self._first_plan.encode(self._tensors[layout], names.Lane.GRADIENTS)
            self._engine.set_plan(layout, first)
            order.contribute_gradients_first(
                user for user in ticket.consumers() if user.type == "DearContribute"
            )
            if self._on_layout is not None:
                self._on_layout(
                    layout, self._names[layout], self._tensors[layout], self._variables[layout]
                )
        self._names[layout][index] = variable.creation_path
        self._variables[layout][index] = variable.number
        if self._first_plan.find_blocks is not None and _NO_VARIABLE not in self._variables[layout]:
            first = self._first_plan.encode(
                self._tensors[layout], names.Lane.GRADIENTS, self._names[layout]
            )
            self._engine.set_plan(layout, first)
        self._engine.set_variable(
            layout,
            index,
            variable.number,
            name=variable.creation_path,
            comparable=variable_names.comparable(variable.creation_path),
            kind=f"{variable.dtype.name}{variable.shape}",
        )


def check_type(value: tf.types.experimental.TensorLike | tf.IndexedSlices) -> Gradient:
    """Returns a tensor, or raises if its type cannot be summed over ranks."""
    value = value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)
    if value.dtype not in _DATA_TYPES:
        supported = ", ".join(sorted(data_type.name for data_type in _DATA_TYPES))
        raise TypeError(
            f"Tensors of type {value.dtype.name} cannot be summed over ranks. Supported: "
            f"{supported}. Cast the tensor first. Received: {value}"
        )
    return value


def _spec(value: Gradient) -> plan.TensorSpec:
    sparse = isinstance(value, tf.IndexedSlices)
    # The number of rows is known at run time only; it is small beside the table.
    count = None if sparse else value.shape.num_elements()
    return plan.TensorSpec(
        data_type=_DATA_TYPES[value.dtype],
        count=-1 if count is None else count,
        sparse=sparse,
        bytes=0 if count is None else count * value.dtype.size,
    )


def _reduced(ops: types.ModuleType, ticket: tf.Tensor, index: int, value: Gradient) -> Gradient:
    if not isinstance(value, tf.IndexedSlices):
        return ops.dear_reduced(ticket, T=value.dtype, index=index, shape=value.shape)
    shape = tf.TensorShape([None]).concatenate(value.values.shape[1:])
    rows, indices = ops.dear_reduced_rows(ticket, T=value.dtype, index=index, shape=shape)
    return tf.IndexedSlices(rows, tf.cast(indices, value.indices.dtype), value.dense_shape)


def _reduced_op(gradient: Gradient) -> tf.Operation | None:
    """The op that yields the sum, or None if it was changed since."""
    tensor = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if not isinstance(tensor, tf.Tensor) or tf.executing_eagerly():
        return None
    if tensor.graph is not _tf_private.ops.get_default_graph():
        return None
    # `ReplicaContext.all_reduce` makes the sum differentiable, which wraps it in identities.
    while tensor.op.type in ("Identity", "IdentityN"):
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor.op if tensor.op.type in ("DearReduced", "DearReducedRows") else None
