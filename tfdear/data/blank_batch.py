# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A batch without rows, in place of one that a rank does not have."""

from typing import Any

import tensorflow as tf


def of(specification: object) -> object:
    """A batch without rows, with the structure and the types of others of its data set.

    Raises a TypeError for components that have no rows.
    """
    return tf.nest.map_structure(_component, specification)


def _component(spec: Any) -> Any:
    # Sizes that are not known: one, for what computes on a row that is made up.
    if isinstance(spec, tf.RaggedTensorSpec):
        inner = [size or 1 for size in spec.shape[spec.ragged_rank + 1 :]]
        value = tf.zeros([0, *inner], spec.dtype)
        for _ in range(spec.ragged_rank):
            splits = tf.zeros([1], spec.row_splits_dtype)
            value = tf.RaggedTensor.from_row_splits(value, splits)
        return value
    if isinstance(spec, tf.TensorSpec | tf.SparseTensorSpec) and spec.shape.rank != 0:
        rows = tf.zeros([0] + [size or 1 for size in spec.shape[1:]], spec.dtype)
        return tf.sparse.from_dense(rows) if isinstance(spec, tf.SparseTensorSpec) else rows
    if type(spec).__name__ == "NoneTensorSpec":
        return None
    raise TypeError(
        "Every tensor of a batch needs a first dimension of rows: a rank that has no batch goes on "
        "with one that has none. Call `dataset.batch(...)` before the data set is distributed. "
        f"Received a component of {spec}"
    )
