# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The ids that a lookup will be given in the next step, by the ops that made those of this step.

[Note: The next batch in a graph]
Ids are followed back to the batch, through ops without state, constants and captured tensors, and
these ops are added once more, for the next batch. A batch that is read in the graph has the next
one beside it (`look_ahead.reads_of`). Where it is an argument of a `tf.function`, what was read is
captured when the function is called, and only then known. The function may as well be called with
something else. So what was read as the batch is compared with the argument; if they differ, no next
batch is known in this call. The added ops then run on this batch again, which they accept.
"""

import dataclasses
import functools
from collections.abc import Sequence

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import call_time
from tfdear.data import look_ahead as look_ahead_module
from tfdear.data.look_ahead import Kind, LookAhead, Read
from tfdear.gradients import graph_notes

_MOST_ANCESTORS = 500
# They have state, vocabularies, which steps do not change.
_READING = frozenset(("LookupTableFindV2", "LookupTableSizeV2"))
# Loops made of ops, which cannot be added one by one.
_LOOPS = frozenset(("Enter", "Exit", "NextIteration", "Merge", "Switch", "LoopCond"))


@dataclasses.dataclass(frozen=True, eq=False)
class NextIds:
    """Ids of the next batch, in the graph of this step."""

    ids: tf.Tensor  # Of the type of this step's.
    present: tf.Tensor  # Scalar bool: whether they are known; else they mean nothing.


@dataclasses.dataclass(frozen=True, eq=False)
class _Found:
    """What a tensor is for the next batch: itself, if it does not depend on the batch."""

    tensor: tf.Tensor
    # Whether what it was computed from is of a next batch, each a scalar bool.
    conditions: tuple[tf.Tensor, ...] = ()


def next_of(ids: tf.Tensor) -> NextIds | None:
    """What the next batch has in place of these ids; None: that cannot be told.

    Call it where the ids are used. It may only decide about order: now and then it is wrong.
    """
    look_ahead = getattr(tf.distribute.get_strategy().extended, "look_ahead", None)
    if look_ahead is None or not look_ahead.kinds or not tf.is_symbolic_tensor(ids):
        return None
    with _tf_private.record.stop_recording(), tf.control_dependencies(None):
        found = _follow(ids, look_ahead)
        if found is None:
            return None
        present = tf.constant(True)
        for condition in found.conditions:
            present = tf.logical_and(present, condition)
        return NextIds(found.tensor, present)


def _follow(tensor: tf.Tensor, look_ahead: LookAhead) -> _Found | None:
    """What a tensor is for the next batch, in its own graph; None: that cannot be told."""
    known = _known(tensor.graph)
    ops: dict[int, tf.Operation] = {}
    waiting = [tensor]
    while waiting:
        value = waiting.pop()
        if value.name in known:
            continue
        if value.op.type == "Placeholder" or _read_with(value) is not None:
            found = _source(value, look_ahead)
            if found is None:
                return None
            known[value.name] = found
        elif not _can_be_added(value.op) or len(ops) > _MOST_ANCESTORS:
            return None
        elif value.op._id not in ops:
            ops[value.op._id] = value.op
            waiting += value.op.inputs
    for _, op in sorted(ops.items()):  # What an op depends on was added before it.
        inputs = [known[value.name] for value in op.inputs]
        changed = any(
            one.tensor.name != value.name for one, value in zip(inputs, op.inputs, strict=True)
        )
        outputs = _add_again(op, inputs) if changed else op.outputs
        conditions = tuple({id(c): c for one in inputs for c in one.conditions}.values())
        for old, new in zip(op.outputs, outputs, strict=True):
            known[old.name] = _Found(new, conditions)
    return known[tensor.name]


def _known(graph: tf.Graph) -> dict[str, _Found]:
    """What was found in a graph already, by names of tensors."""
    return graph_notes.of(graph, "next_batch")


def _can_be_added(op: tf.Operation) -> bool:
    if op.op_def.is_stateful and op.type not in _READING:
        return False
    return not op.type.startswith("Dear") and op.type not in _LOOPS


def _add_again(op: tf.Operation, inputs: list[_Found]) -> list[tf.Tensor]:
    attributes = {name: value for name, value in op.node_def.attr.items() if name != "_class"}
    with op.graph.as_default(), tf.control_dependencies(None), tf.device(op.device):
        return op.graph.create_op(
            op.type,
            [one.tensor for one in inputs],
            [output.dtype for output in op.outputs],
            name=f"next/{op.name}",
            attrs=attributes,
            op_def=op.op_def,
        ).outputs


def _place(value: tf.Tensor, parts: Sequence[tf.Tensor]) -> int | None:
    """Where a tensor is among others of its graph; None: it is not."""
    return next((place for place, part in enumerate(parts) if part.name == value.name), None)


def _read_with(value: tf.Tensor) -> Read | None:
    """What an op read that has this tensor as a part of the batch."""
    reads = look_ahead_module.reads_of(value.graph)
    return next((read for read in reads if _place(value, read.batch) is not None), None)


def _source(value: tf.Tensor, look_ahead: LookAhead) -> _Found | None:
    """What a tensor is that comes into a graph."""
    graph = value.graph
    read = _read_with(value)
    if read is not None:
        _add_batch(read.batch, read.following, read.has_next)
        return _known(graph)[value.name]
    for external, internal in getattr(graph, "captures", ()):
        if internal.name == value.name:
            if not tf.is_symbolic_tensor(external):
                return _Found(value)
            found = _follow(external, look_ahead)
            if found is None or found.tensor.name == external.name:
                return None if found is None else _Found(value)
            return _Found(graph.capture(found.tensor), tuple(map(graph.capture, found.conditions)))
    for kind in sorted(look_ahead.kinds, key=len, reverse=True):
        arguments = _arguments_like(graph, kind)
        # A function whose first call has nothing that was read will hardly have later.
        if arguments and _place(value, arguments) is not None:
            if not _is_read_around(graph, look_ahead, kind):
                return None
            _add_arguments(arguments, look_ahead, kind)
            return _known(graph)[value.name]
    return None


def _add_batch(batch: list[tf.Tensor], following: list[tf.Tensor], has_next: tf.Tensor) -> None:
    """Notes what the tensors of a batch are for the next one."""
    graph = has_next.graph
    with graph.as_default(), tf.control_dependencies(None):
        # Ops need not accept what they never see: other sizes than those fixed, or no rows.
        conditions = [has_next]
        for value, other in zip(batch, following, strict=True):
            shape = tf.shape(other)
            for axis, (size, known) in enumerate(zip(value.shape, other.shape, strict=True)):
                if known is None and size is not None:
                    conditions.append(tf.equal(shape[axis], size))
            has_rows = tf.reduce_all(tf.not_equal(shape, 0))
            conditions.append(has_rows | tf.reduce_any(tf.equal(tf.shape(value), 0)))
        present = tf.reduce_all(tf.stack(conditions))
        chosen = tf.cond(present, lambda: following, lambda: batch)
    for value, other in zip(batch, chosen, strict=True):
        other.set_shape(value.shape)
        _known(graph)[value.name] = _Found(other, (present,))


def _add_arguments(arguments: list[tf.Tensor], look_ahead: LookAhead, kind: Kind) -> None:
    """As `_add_batch`, of arguments that may be what was read."""
    graph = arguments[0].graph
    *read, has_next = (
        _at_call(graph, look_ahead, kind, part) for part in range(2 * len(arguments) + 1)
    )
    with graph.as_default(), tf.control_dependencies(None):
        same_shapes = [
            tf.reduce_all(tf.equal(tf.shape(value), tf.shape(part)))
            for value, part in zip(arguments, read, strict=False)
        ]
        is_read = tf.cond(
            tf.reduce_all(tf.stack([has_next, *same_shapes])),
            lambda: tf.reduce_all(
                tf.stack(
                    [_are_equal(one, other) for one, other in zip(arguments, read, strict=False)]
                )
            ),
            lambda: tf.constant(False),
        )
    _add_batch(arguments, read[len(arguments) :], is_read)


def _are_equal(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Whether tensors of one shape are equal; of floats, which may be many, the first."""
    if one.dtype.is_floating and one.shape.rank:
        one, other = one[:1], other[:1]
    return tf.reduce_all(tf.equal(one, other))


def _arguments_like(graph: tf.Graph, kind: Kind) -> list[tf.Tensor] | None:
    """The arguments of a function that are a batch of a kind; None: there is not just one."""
    if not call_time.is_function(graph):
        return None  # A branch, or the body of a loop.
    captured = [*graph.internal_captures, *tf.nest.flatten(graph.deferred_internal_captures)]
    names = {tensor.name for tensor in captured}
    arguments = [tensor for tensor in graph.inputs if tensor.name not in names]
    kinds = look_ahead_module.kind_of(arguments)
    starts = [
        start
        for start in range(len(kinds) - len(kind) + 1)
        if kinds[start : start + len(kind)] == kind
    ]
    return arguments[starts[0] : starts[0] + len(kind)] if len(starts) == 1 else None


def _at_call(graph: tf.Graph, look_ahead: LookAhead, kind: Kind, part: int) -> tf.Tensor:
    """Part of what was read when a function is called; parts as tf.data yields them."""
    dtype, rank = _type_of(kind, part)
    return call_time.value(
        graph,
        f"tfdear_next_batch_{part}_{kind}",
        tf.TensorSpec([None] * rank, dtype),
        functools.partial(_value_at_call, look_ahead, kind, part),
    )


def _type_of(kind: Kind, part: int) -> tuple[tf.DType, int]:
    return (*kind, *kind, (tf.bool, 0))[part]


def _value_at_call(look_ahead: LookAhead, kind: Kind, part: int) -> tf.Tensor:
    """As `_at_call`, where a function is called."""
    graph = None if tf.executing_eagerly() else _tf_private.ops.get_default_graph()
    where = _where_read(graph, look_ahead, kind)
    if isinstance(where, Read):
        return (*where.batch, *where.following, where.has_next)[part]
    if where is not None:
        return _at_call(where, look_ahead, kind, part)
    dtype, rank = _type_of(kind, part)
    return tf.zeros([0] * rank, dtype)


def _around(graph: tf.Graph) -> tf.Graph | None:
    """The graph around one; None: there is none."""
    outer = getattr(graph, "outer_graph", None)
    return outer if isinstance(outer, _tf_private.func_graph.FuncGraph) else None


def _is_read_around(graph: tf.Graph, look_ahead: LookAhead, kind: Kind) -> bool:
    """Whether the call for which a function is traced has something that was read."""
    where: Read | tf.Graph | None = graph
    while isinstance(where, tf.Graph):
        outer = _around(where)
        if outer is None:
            return look_ahead.last_kind == kind
        where = _where_read(outer, look_ahead, kind)
    return where is not None


def _where_read(
    graph: tf.Graph | None, look_ahead: LookAhead, kind: Kind
) -> Read | tf.Graph | None:
    """What was last read of a kind, or the function that may have it as its arguments."""
    while graph is not None:
        reads = [read for read in look_ahead_module.reads_of(graph) if read.kind == kind]
        if reads:
            return reads[-1]
        if _arguments_like(graph, kind) is not None:
            return graph
        if call_time.is_function(graph):
            return None  # Not a branch, or the body of a loop.
        graph = _around(graph)
    read = look_ahead.last
    return read if read is not None and read.kind == kind else None
