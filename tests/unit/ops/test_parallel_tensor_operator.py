# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The parallel tensor operator in one process: parts, errors, and when it pays."""

import numpy as np
import pytest
import tensorflow as tf

import tfdear
from tfdear import parallel_tensor_operator
from tfdear.planning import cost_model


def norms(tensors):
    return tf.stack([tf.norm(tensor) for tensor in tensors])


def test_one_rank_applies_the_function_itself():
    rows = tf.random.normal([7, 3])
    squares = tfdear.ops.parallel_tensor_operator(tf.square, rows)
    np.testing.assert_array_equal(squares, tf.square(rows))
    tensors = [tf.random.normal([5]), tf.random.normal([2, 2])]
    np.testing.assert_array_equal(
        tfdear.ops.parallel_tensor_operator(norms, tensors), norms(tensors)
    )


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    "sizes", [[5], [0, 0], [1] * 12, [100, 1, 1, 1], [1, 1, 1, 100], [3, 0, 9]]
)
def test_parts_cover_the_list_in_order(sizes, world_size):
    parts = parallel_tensor_operator.consecutive_parts(sizes, world_size)
    assert len(parts) == world_size
    assert [i for begin, end in parts for i in range(begin, end)] == list(range(len(sizes)))
    for begin, end in parts:
        # Half of the items at the borders is what a part may have too much.
        allowed = sum(sizes) / world_size + max(sizes)
        assert sum(sizes[begin:end]) <= allowed


def test_many_layers_are_shared_evenly():
    sizes = [random % 97 + 1 for random in range(0, 161 * 31, 31)]
    parts = parallel_tensor_operator.consecutive_parts(sizes, 8)
    shares = [sum(sizes[begin:end]) for begin, end in parts]
    assert max(shares) < 1.1 * sum(sizes) / 8


def test_seconds_saved():
    cost = cost_model.LinearCost(a=0.5, b=0.25)
    assert parallel_tensor_operator.seconds_saved(8.0, 2, 4, cost) == 5.0
    assert parallel_tensor_operator.seconds_saved(1.0, 8, 2, cost) == -2.0
    assert parallel_tensor_operator.seconds_saved(8.0, 8, 1, cost) == 0.0


@pytest.mark.parametrize(
    ("fn", "tensors", "words"),
    [
        (norms, [], "at least one"),
        (tf.square, 3.0, "scalar"),
        (tf.reduce_sum, [1.0, 2.0], "first dimension"),
    ],
)
def test_bad_input_is_refused(fn, tensors, words):
    with pytest.raises(ValueError, match=words):
        tfdear.ops.parallel_tensor_operator(fn, tensors)
