# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Rows of sparse gradients (`tf.IndexedSlices`), several of which may have the same index."""

from typing import TypeAlias

import tensorflow as tf

from tfdear.gradients import lookup_group

# A gradient of any kind.
Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices


def all_rows(gradient: tf.Tensor, shape: tuple[int, int]) -> tf.IndexedSlices:
    """A dense gradient of a table of this shape as its rows: all of them, or none.

    See [Note: Tables that a branch does not use], `sharded_variable.py`.
    """
    rows = gradient.shape[0]
    if rows is None:
        rows = tf.shape(gradient, tf.int64)[0]
    elif rows:
        gradient = tf.ensure_shape(gradient, shape)
    return tf.IndexedSlices(gradient, tf.range(rows, dtype=tf.int64), tf.constant(shape, tf.int64))


def unique(values: tf.Tensor, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """One row per index, the sum of those that share it, and the indices as int64."""
    if _is_range(indices):
        return values, indices
    indices, positions = tf.unique(tf.cast(indices, tf.int64))
    return tf.math.unsorted_segment_sum(values, positions, tf.shape(indices)[0]), indices


def of_lookup(values: tf.Tensor, lookup: lookup_group.Lookup) -> tuple[tf.Tensor, tf.Tensor]:
    """As `unique`, of the gradient of a lookup: in the order of its different ids."""
    # A rank without examples has looked up none of the ids of the row that was made up for it.
    different = tf.reduce_max(tf.concat([lookup.positions, [-1]], 0)) + 1
    rows = tf.math.unsorted_segment_sum(values, lookup.positions, different)
    return rows[: tf.shape(lookup.unique)[0]], tf.cast(lookup.unique, tf.int64)


def sum_duplicates(gathered: tf.IndexedSlices) -> tf.IndexedSlices:
    """The gathered rows with one row per index: ranks may have touched the same ones."""
    rows, indices = unique(gathered.values, gathered.indices)
    rows = tf.ensure_shape(rows, [None, *gathered.values.shape[1:]])
    return tf.IndexedSlices(rows, tf.cast(indices, gathered.indices.dtype), gathered.dense_shape)


def _is_range(indices: tf.Tensor) -> bool:
    """Whether indices are certain to be different ones: those of `all_rows`."""
    if tf.executing_eagerly() or indices.dtype != tf.int64:
        return False
    while indices.op.type in ("Identity", "IdentityN"):
        indices = indices.op.inputs[indices.value_index]
    return indices.op.type == "Range"
