# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Batches without rows go where batches of the data set go."""

import pytest
import tensorflow as tf

from tfdear.data import blank_batch

ROWS = {
    "dense": tf.ones([6, 3, 2]),
    "text": tf.constant(["a"] * 6),
    "sparse": tf.sparse.from_dense(tf.eye(6)),
    "ragged": tf.ragged.constant([[1], [], [2, 3], [4], [5], [6]]),
    "more ragged": tf.ragged.constant([[[1]], [], [[2, 3], []], [[4]], [], []]),
    "rows of pairs": tf.ragged.constant([[[1, 2]], [], [[3, 4]], [], [], []], ragged_rank=1),
}


@pytest.mark.parametrize("kind", ROWS)
def test_it_stands_behind_a_batch(kind):
    dataset = tf.data.Dataset.from_tensor_slices({kind: ROWS[kind]})
    if "ragged" in kind or "pairs" in kind:
        dataset = tf.data.Dataset.from_tensors({kind: ROWS[kind]})
    else:
        dataset = dataset.batch(6)
    blank = tf.data.Dataset.from_tensors(blank_batch.of(dataset.element_spec))
    last = list(dataset.concatenate(blank))[-1][kind]
    value = ROWS[kind]
    assert last.dtype == value.dtype
    if isinstance(value, tf.RaggedTensor):
        assert last.nrows() == 0 and last.ragged_rank == value.ragged_rank
    else:
        assert last.shape[0] == 0 and last.shape[1:] == value.shape[1:]


def test_sizes_that_are_not_known_are_one():
    (blank,) = blank_batch.of((tf.TensorSpec([None, None, 3]),))
    assert blank.shape == [0, 1, 3]


def test_components_without_rows_are_refused():
    with pytest.raises(TypeError, match="first dimension of rows.*TensorSpec"):
        blank_batch.of(tf.TensorSpec([]))


def test_parts_that_are_none_stay():
    dataset = tf.data.Dataset.from_tensors((tf.ones([2]), None))
    rows, nothing = blank_batch.of(dataset.element_spec)
    assert rows.shape == [0] and nothing is None
