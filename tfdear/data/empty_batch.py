# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank without examples in a step computes on a made-up row, which counts for nothing.

Such a rank must run the whole step, or it would not take part in the step's collectives. Not every
kernel and not every model accepts a batch without rows (oneDNN's fused convolution returns a wrong
shape, `tf.reshape` cannot infer a dimension), so the step sees one row: the first of a dataset of
that kind, since layers may refuse values that no example has (a lookup without an entry for unknown
tokens); where no row was seen yet, one of zeros. Its gradients and its changes of metrics are left
out of the sums, and it is cut off what the step returns.
"""

from typing import Any, TypeVar

import tensorflow as tf

from tfdear.data import examples as examples_module

_Structure = TypeVar("_Structure")

_COUNTS = "_tfdear_counts"


def fill(
    arguments: _Structure, examples: tf.Tensor, elements: examples_module.Elements
) -> _Structure:
    """Gives a step's arguments one row if this rank has no `examples` (scalar int64)."""
    flat = tf.nest.flatten(arguments)
    indices = [index for index, value in enumerate(flat) if _may_be_empty(value)]
    if not indices:
        return arguments
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


def cut(outputs: _Structure, examples: tf.Tensor) -> _Structure:
    """Cuts the made-up row off the batches that a step returned."""

    def cut_row(value: Any) -> Any:
        if isinstance(value, tf.RaggedTensor):
            return value[: tf.where(examples > 0, value.nrows(), 0)]
        if not isinstance(value, tf.Tensor) or not value.shape.rank:
            return value
        if tf.executing_eagerly():
            return value[:0] if value.shape[0] == 1 and int(examples) == 0 else value
        if value.shape[0] is not None:
            return value
        return value[: tf.where(examples > 0, tf.shape(value, tf.int64)[0], 0)]

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


def _one_row(value: tf.Tensor, row: tf.Tensor | None) -> tf.Tensor:
    """One row, or the value if it has rows, as a value that is no batch may have."""
    if row is not None:
        return tf.cond(tf.shape(value)[0] > 0, lambda: value, lambda: tf.identity(row))
    shape = tf.shape(value)
    shape = tf.concat([[tf.maximum(0, 1 - shape[0])], shape[1:]], 0)
    return tf.concat([value, tf.zeros(shape, value.dtype)], 0)
