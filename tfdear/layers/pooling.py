# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Combines the vectors of several ids to one."""

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

COMBINERS = ("sum", "mean", "sqrtn")

_Ids: TypeAlias = tf.Tensor | tf.RaggedTensor | tf.SparseTensor


def pool(
    look_up: Callable[[tf.Tensor], tf.Tensor],
    ids: _Ids,
    weights: Any,
    combiner: str,
    *,
    leave_out_zero: bool = False,
    sums_of: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
) -> tf.Tensor:
    """The combined vectors of the ids in the last dimension; 0 where there are none.

    Args:
        look_up: Returns the vectors of ids.
        ids: Of any shape with at least one dimension; the last one may be ragged, or sparse.
        weights: A weight for every id, in the structure of `ids`; None: 1.
        combiner: "sum"; "mean": divided by the sum of weights; "sqrtn": divided by the square root
            of the sum of their squares.
        leave_out_zero: The id 0 is padding, as if it were not there.
        sums_of: Returns the sums of the vectors of ids, from the ids, the row of each, which is
            negative if it is in none, and the number of rows. None: vectors are looked up and added
            up here; so they are if there are weights.
    """
    flat, rows, count, shape = _flatten(ids)
    factors = None
    if weights is None and sums_of is not None:
        if leave_out_zero:
            rows = tf.where(tf.not_equal(flat, 0), rows, -1)
        total = sums_of(flat, rows, count)
    else:
        vectors = look_up(flat)
        if weights is not None:
            factors = tf.cast(_values_like(weights, ids), vectors.dtype)
        if leave_out_zero:
            counted = tf.cast(tf.not_equal(flat, 0), vectors.dtype)
            factors = counted if factors is None else factors * counted
        if factors is not None:
            vectors *= factors[:, tf.newaxis]
        total = tf.math.unsorted_segment_sum(vectors, rows, count)
    if combiner != "sum":
        if factors is None:
            factors = tf.ones_like(rows, total.dtype)
        if combiner == "sqrtn":
            factors = tf.square(factors)
        divisor = tf.math.unsorted_segment_sum(factors, rows, count)
        divisor = tf.sqrt(divisor) if combiner == "sqrtn" else divisor
        total = tf.math.divide_no_nan(total, divisor[:, tf.newaxis])
    return tf.reshape(total, tf.concat([shape, tf.shape(total)[1:]], 0))


def _flatten(ids: _Ids) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The ids, the row of each, how many rows there are, and the shape that they have."""
    if isinstance(ids, tf.RaggedTensor):
        if ids.ragged_rank != 1 or ids.shape.rank != 2:
            raise ValueError(
                "With a `combiner`, ragged ids must have two dimensions. Received: shape "
                f"{ids.shape}"
            )
        count = tf.cast(ids.nrows(), tf.int32)
        return ids.flat_values, tf.cast(ids.value_rowids(), tf.int32), count, count[tf.newaxis]
    if isinstance(ids, tf.SparseTensor):
        shape = tf.cast(ids.dense_shape[:-1], tf.int32)
        rows = tf.zeros_like(ids.indices[:, 0])
        for dimension in range(ids.shape.rank - 1):
            rows = rows * ids.dense_shape[dimension] + ids.indices[:, dimension]
        return ids.values, tf.cast(rows, tf.int32), tf.reduce_prod(shape), shape
    ids = tf.convert_to_tensor(ids)
    shape = tf.shape(ids)[:-1]
    count = tf.reduce_prod(shape)
    rows = tf.repeat(tf.range(count), tf.shape(ids)[-1])
    return tf.reshape(ids, [-1]), rows, count, shape


def _values_like(weights: Any, ids: _Ids) -> tf.Tensor:
    """The weight of each id; an error if the two have different structures."""
    kinds = (tf.RaggedTensor, tf.SparseTensor)
    kind = next((kind for kind in kinds if isinstance(ids, kind)), tf.Tensor)
    if not isinstance(weights, kinds):
        weights = tf.convert_to_tensor(weights)
    if not isinstance(weights, kind) or not weights.shape.is_compatible_with(ids.shape):
        raise ValueError(
            "`weights` must have the structure of the ids. Received: a "
            f"{type(weights).__name__} of shape {weights.shape} for ids in a {kind.__name__} of "
            f"shape {ids.shape}"
        )
    if kind is tf.RaggedTensor:
        values, structures = weights.flat_values, (weights.row_splits, ids.row_splits)
    elif kind is tf.SparseTensor:
        values, structures = weights.values, (weights.indices, ids.indices)
    else:
        values, structures = tf.reshape(weights, [-1]), (tf.shape(weights), tf.shape(ids))
    same = tf.debugging.assert_equal(
        *(tf.cast(structure, tf.int64) for structure in structures),
        message="`weights` must have the structure of the ids, a weight for each; received others",
    )
    with tf.control_dependencies([] if same is None else [same]):
        return tf.identity(values)
