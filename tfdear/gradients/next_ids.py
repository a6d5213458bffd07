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

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import look_ahead as look_ahead_module
from tfdear.data.look_ahead import Kind, LookAhead, Read

_FOUND = "_tfdear_next_batch"
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
            if known[value.name] is None:
                return None
        elif value.op.type == "Placeholder" or _read_with(value) is not None:
            known[value.name] = _source(value, look_ahead)
            waiting.append(value)
        elif not _can_be_added(value.op) or len(ops) > _MOST_ANCESTORS:
            return None
        elif value.op._id not in ops:
            ops[value.op._id] = value.op
            waiting += value.op.inputs
    for _, op in sorted(ops.items()):  # What an op depends on was added before it.
        inputs = [known[value.name] for value in op.inputs]
        changed = any(one.tensor is not value for one, value in zip(inputs, op.inputs, strict=True))
        outputs = _add_again(op, inputs) if changed else op.outputs
        conditions = tuple({id(c): c for one in inputs for c in one.conditions}.values())
        for old, new in zip(op.outputs, outputs, strict=True):
            known[old.name] = _Found(new, conditions)
    return known[tensor.name]


def _known(graph: tf.Graph) -> dict[str, _Found | None]:
    """What was found in a graph already, by names of tensors."""
    if not hasattr(graph, _FOUND):
        # An attribute lives as long as the graph, which tensors keep alive.
        setattr(graph, _FOUND, {})
    return getattr(graph, _FOUND)


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


def _read_with(value: tf.Tensor) -> Read | None:
    """What an op read that has this tensor as a part of the batch."""
    for read in look_ahead_module.reads_of(value.graph):
        if any(part is value for part in read.batch):
            return read
    return None


def _source(value: tf.Tensor, look_ahead: LookAhead) -> _Found | None:
    """What a tensor is that comes into a graph."""
    graph = value.graph
    read = _read_with(value)
    if read is not None:
        index = next(i for i, part in enumerate(read.batch) if part is value)
        return _Found(read.following[index], (read.has_next,))
    for external, internal in getattr(graph, "captures", ()):
        if internal is value:
            if not tf.is_symbolic_tensor(external):
                return _Found(value)
            found = _follow(external, look_ahead)
            if found is None or found.tensor is external:
                return None if found is None else _Found(value)
            return _Found(graph.capture(found.tensor), tuple(map(graph.capture, found.conditions)))
    for kind in sorted(look_ahead.kinds, key=len, reverse=True):
        arguments = _arguments_like(graph, kind)
        if arguments is not None:
            index = next((i for i, part in enumerate(arguments) if part is value), None)
            # A function whose first call has nothing that was read will hardly have later.
            if index is None or not _is_read_around(graph, look_ahead, kind):
                return None
            return _argument(value, look_ahead, kind, index)
    return None


def _arguments_like(graph: tf.Graph, kind: Kind) -> list[tf.Tensor] | None:
    """The arguments of a function that are a batch of a kind; None: there is not just one."""
    if type(graph) is not _tf_private.func_graph.FuncGraph:
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


def _argument(value: tf.Tensor, look_ahead: LookAhead, kind: Kind, index: int) -> _Found:
    """What an argument of a function is, if the function was called with what was read."""
    graph = value.graph
    batch, following, has_next = (
        _at_call(graph, look_ahead, kind, part)
        for part in (index, len(kind) + index, 2 * len(kind))
    )
    with graph.as_default(), tf.control_dependencies(None):
        shape = tf.shape(following)
        fixed = tf.constant([size is not None for size in value.shape], tf.bool)
        sizes = tf.constant([size or 0 for size in value.shape], tf.int32)
        conditions = (
            has_next,
            # Ops need not accept other fixed sizes, or no rows.
            tf.reduce_all(tf.equal(shape, sizes) | ~fixed),
            tf.reduce_all(tf.not_equal(shape, 0)) | tf.reduce_any(tf.equal(tf.shape(value), 0)),
            tf.reduce_all(tf.equal(tf.shape(batch), tf.shape(value))),
        )
        present = tf.cond(
            tf.reduce_all(tf.stack(conditions)),
            lambda: tf.reduce_all(tf.equal(batch, value)),
            lambda: tf.constant(False),
        )
        tensor = tf.cond(present, lambda: following, lambda: value)
        tensor.set_shape(value.shape)
    return _Found(tensor, (present,))


def _at_call(graph: tf.Graph, look_ahead: LookAhead, kind: Kind, part: int) -> tf.Tensor:
    """Part of what was read when a function is called; parts as tf.data yields them."""
    captures = graph.function_captures
    key = f"tfdear_next_batch_{part}_{kind}"
    if key not in captures.by_ref_internal:
        dtype, rank = _type_of(kind, part)
        specification = tf.TensorSpec([None] * rank, dtype)
        with graph.as_default(), tf.control_dependencies(None):
            placeholder = tf.compat.v1.placeholder(dtype, specification.shape)
        # As `capture_call_time_value`, which leaves it to the outermost function alone to ask.
        captures.add_or_replace(
            key=key,
            external=functools.partial(_value_at_call, look_ahead, kind, part),
            internal=placeholder,
            tracetype=specification,
            is_by_ref=True,
        )
    return captures.by_ref_internal[key]


def _type_of(kind: Kind, part: int) -> tuple[tf.DType, int]:
    return (*kind, *kind, (tf.bool, 0))[part]


def _value_at_call(look_ahead: LookAhead, kind: Kind, part: int) -> list[tf.Tensor]:
    """As `_at_call`, where a function is called."""
    graph = None if tf.executing_eagerly() else _tf_private.ops.get_default_graph()
    where = _where_read(graph, look_ahead, kind)
    if isinstance(where, Read):
        return [(*where.batch, *where.following, where.has_next)[part]]
    if where is not None:
        return [_at_call(where, look_ahead, kind, part)]
    dtype, rank = _type_of(kind, part)
    return [tf.zeros([0] * rank, dtype)]


def _around(graph: tf.Graph) -> tf.Graph | None:
    """The graph around one; None: there is none."""
    outer = getattr(graph, "outer_graph", None)
    return outer if isinstance(outer, _tf_private.func_graph.FuncGraph) else None


def _is_read_around(graph: tf.Graph, look_ahead: LookAhead, kind: Kind) -> bool:
    """Whether the call for which a function is traced has something that was read."""
    where: Read | tf.Graph | None = graph
    while isinstance(where, tf.Graph):
        where = _where_read(_around(where), look_ahead, kind)
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
        if type(graph) is _tf_private.func_graph.FuncGraph:
            return None  # Not a branch, or the body of a loop.
        graph = _around(graph)
    read = look_ahead.last
    return read if read is not None and read.kind == kind else None
