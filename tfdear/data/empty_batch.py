# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank without examples in a step computes on a made-up row, which counts for nothing.

Such a rank must run the whole step, or it would not take part in the step's collectives. Not every
kernel and not every model accepts a batch without rows (oneDNN's fused convolution returns a wrong
shape, `tf.reshape` cannot infer a dimension), so the step sees one row: the first of a dataset of
that kind, since layers may refuse values that no example has (a lookup without an entry for unknown
tokens); where no row was seen yet, and of sparse and ragged tensors, one of zeros, or without
values. Its gradients and its changes of metrics are left
out of the sums, and it is cut off what the step returns.
"""

from collections.abc import Set
from typing import Any, TypeVar

import tensorflow as tf

from tfdear.data import examples as examples_module
from tfdear.data import own_rows

_Structure = TypeVar("_Structure")

_COUNTS = "_tfdear_counts"
_OF_ALL_RANKS = "_tfdear_of_all_ranks"


def fill(
    arguments: _Structure, examples: tf.Tensor | None, elements: examples_module.Elements
) -> _Structure:
    """Gives a step's arguments one row if this rank has no `examples` (scalar int64).

    As they are, if their number is not known.
    """
    if examples is None:
        return arguments
    flat = tf.nest.flatten(arguments)
    # Nothing infers a placeholder's value: where a graph is traced for arguments of known shapes,
    # the made-up row must not become part of those that `cut` leaves alone.
    missing = tf.compat.v1.placeholder_with_default(tf.cast(examples == 0, tf.int64), [])
    for index, value in enumerate(flat):
        if isinstance(value, tf.SparseTensor):
            flat[index] = _longer_sparse(value, missing)
        elif isinstance(value, tf.RaggedTensor):
            flat[index] = _longer_ragged(value, missing)
    indices = [index for index, value in enumerate(flat) if _may_be_empty(value)]
    if not indices:
        return tf.nest.pack_sequence_as(arguments, flat)
    given = [flat[index] for index in indices]
    rows = elements.rows(flat)
    with tf.init_scope():
        # They become inputs of a graph, not constants.
        rows = {index: tf.convert_to_tensor(row) for index, row in rows.items()}
    filled = tf.cond(
        examples > 0,
        lambda: given,
        lambda: [_one_row(flat[index], rows.get(index)) for index in indices],
    )
    for index, value, old in zip(indices, filled, given, strict=True):
        value.set_shape([None, *old.shape[1:]])
        flat[index] = value
    return tf.nest.pack_sequence_as(arguments, flat)


def note_of_all_ranks(value: tf.Tensor) -> tf.Tensor:
    """Notes that the rows of a value are those of all ranks; returns it."""
    setattr(value, _OF_ALL_RANKS, True)
    return value


def cut(
    outputs: _Structure, examples: tf.Tensor | None, own_reads: Set[tf.Operation] = frozenset()
) -> _Structure:
    """Cuts the made-up row off the batches that a step returned.

    `own_reads`: operations that yield values of this rank's own, besides what the step was given.
    """
    if examples is None:
        return outputs

    def is_batch(value: tf.Tensor | tf.SparseTensor) -> bool:
        if not value.shape.rank or hasattr(value, _OF_ALL_RANKS):
            return False
        if tf.executing_eagerly():
            return value.shape[0] == 1
        one = value.values if isinstance(value, tf.SparseTensor) else value
        return value.shape[0] is None and own_rows.are_in(one, own_reads)

    def cut_row(value: Any) -> Any:
        if isinstance(value, tf.RaggedTensor):
            return value[: tf.where(examples > 0, value.nrows(), 0)]
        if isinstance(value, tf.SparseTensor):
            return _without_rows(value, examples) if is_batch(value) else value
        if isinstance(value, tf.Tensor) and is_batch(value):
            return value[: tf.where(examples > 0, tf.shape(value, tf.int64)[0], 0)]
        return value

    return tf.nest.map_structure(cut_row, outputs)


def mark(outputs: object, examples: tf.Tensor | None) -> None:
    """Marks what a step returned with whether it counts, for `strategy.reduce`."""
    if examples is None:
        return
    for value in tf.nest.flatten(outputs):
        if isinstance(value, tf.Tensor):
            setattr(value, _COUNTS, examples > 0)


def counts(values: object) -> tf.Tensor | None:
    """Scalar bool: whether a step's results count; None if they are not known to be results."""
    for value in tf.nest.flatten(values):
        flag = getattr(value, _COUNTS, None)
        if flag is not None:
            same_graph = tf.executing_eagerly() or getattr(flag, "graph", None) is value.graph
            return flag if same_graph else None
    return None


def _may_be_empty(value: object) -> bool:
    return isinstance(value, tf.Tensor) and bool(value.shape.rank) and not value.shape[0]


def _without_rows(value: tf.SparseTensor, examples: tf.Tensor) -> tf.SparseTensor:
    """Without its rows if there are no `examples`."""
    rows = tf.where(examples > 0, value.dense_shape[:1], 0)
    size = tf.concat([rows, value.dense_shape[1:]], 0)
    return tf.sparse.slice(value, tf.zeros_like(size), size)


def _longer_sparse(value: tf.SparseTensor, missing: tf.Tensor) -> tf.SparseTensor:
    """With a row if it has none and one is `missing`."""
    if value.shape.rank == 0 or value.shape[0]:
        return value
    rows = tf.maximum(value.dense_shape[:1], missing)
    longer = tf.SparseTensor(
        value.indices, value.values, tf.concat([rows, value.dense_shape[1:]], 0)
    )
    longer.set_shape([None, *value.shape[1:]])
    return longer


def _longer_ragged(value: tf.RaggedTensor, missing: tf.Tensor) -> tf.RaggedTensor:
    """The same."""
    if value.shape[0]:
        return value
    missing = tf.cast(
        tf.maximum(missing - tf.cast(value.nrows(), tf.int64), 0), value.row_splits.dtype
    )
    return _append_rows(value, missing)


def _append_rows(value: tf.RaggedTensor | tf.Tensor, count: tf.Tensor) -> Any:
    """With rows that hold nothing, or zeros."""
    if not isinstance(value, tf.RaggedTensor):
        shape = tf.shape(value, count.dtype)
        return tf.concat([value, tf.zeros(tf.concat([[count], shape[1:]], 0), value.dtype)], 0)
    length = value.uniform_row_length
    if length is not None:
        values = _append_rows(value.values, count * length)
        return tf.RaggedTensor.from_uniform_row_length(
            values, length, value.nrows() + count, validate=False
        )
    splits = tf.concat([value.row_splits, tf.repeat(value.row_splits[-1:], count)], 0)
    return tf.RaggedTensor.from_row_splits(value.values, splits, validate=False)


def _one_row(value: tf.Tensor, row: tf.Tensor | None) -> tf.Tensor:
    """One row, or the value if it has rows, as a value that is no batch may have."""
    if row is not None:
        return tf.cond(tf.shape(value)[0] > 0, lambda: value, lambda: tf.identity(row))
    shape = tf.shape(value)
    shape = tf.concat([[tf.maximum(0, 1 - shape[0])], shape[1:]], 0)
    return tf.concat([value, tf.zeros(shape, value.dtype)], 0)
