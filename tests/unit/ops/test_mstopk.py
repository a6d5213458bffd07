# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The top-k operator as TensorFlow sees it; tests/cc/compression/top_k_test.cc tests its core."""

import numpy as np
import pytest
import tensorflow as tf

import tfdear
from tfdear import ops


def expected(x, k):
    """NaN first, then the larger magnitude, then the lower index; in ascending order."""
    magnitudes = np.abs(np.asarray(x, np.float64)).ravel()
    magnitudes[np.isnan(magnitudes)] = np.inf
    order = np.lexsort((-magnitudes, ~np.isnan(np.asarray(x, np.float64)).ravel()))
    return np.sort(order[:k])


def normal(d, seed=0):
    return np.random.default_rng(seed).standard_normal(d).astype("float32")


def but(value, d=4001):
    x = normal(d)
    x[d // 3] = value
    return x


def few_non_zeros(d=4001):
    x = np.zeros(d, "float32")
    x[[5, 77, d - 1]] = [1, -2, 3]
    return x


VECTORS = {
    "normal": normal(4001),
    "uniform": np.random.default_rng(1).uniform(-1, 1, 4001),
    "Laplace": np.random.default_rng(2).laplace(size=4001),
    "Student-t": np.random.default_rng(3).standard_t(3, 4001),
    "Cauchy": np.random.default_rng(4).standard_cauchy(4001),
    "log-normal(4)": np.random.default_rng(5).lognormal(0, 4, 4001),
    "log-normal(8)": np.random.default_rng(6).lognormal(0, 8, 4001),
    "tied": np.round(2 * normal(4001)),
    "outlier": but(1e30),
    "infinity": but(-np.inf),
    "NaN": but(np.nan),
    "few non-zeros": few_non_zeros(),
    "all equal": np.full(4001, -3.5),
    "all zero": np.zeros(4001),
    "denormals": normal(4001) * 1e-40,
    "sorted": np.sort(np.abs(normal(4001))) * np.tile([1, -1], 2001)[:4001],
}


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_selects_exactly_the_largest(name, dtype):
    with np.errstate(over="ignore"):
        x = tf.cast(tf.constant(VECTORS[name].astype("float32")), dtype)
    for k in (1, 40, 40, 41, 2000):  # twice the same: then the last threshold is the first guess
        values, indices = ops.mstopk(x, k)
        assert values.dtype == x.dtype
        np.testing.assert_array_equal(indices, expected(tf.cast(x, "float32"), k))
        np.testing.assert_array_equal(
            tf.cast(values, "float32"), tf.cast(tf.gather(x, indices), "float32")
        )


@pytest.mark.smoke
def test_is_public_and_its_examples_hold():
    values, indices = tfdear.ops.mstopk(tf.constant([0.1, -3.0, 2.0, 0.5]), 2)
    assert (values.numpy().tolist(), indices.numpy().tolist()) == ([-3.0, 2.0], [1, 2])
    values, indices, residual = tfdear.ops.mstopk_with_feedback(
        tf.constant([1.0, 2.0]), tf.constant([5.0, 0.0]), 1
    )
    assert values.numpy().tolist() == [6.0]
    assert indices.numpy().tolist() == [0]
    assert residual.numpy().tolist() == [0.0, 2.0]


def test_long_vectors_on_all_threads():
    x = normal(300007)
    for k in (300, 3000, 3000):
        _, indices = ops.mstopk(x, k)
        np.testing.assert_array_equal(indices, expected(x, k))


def test_indices_count_the_elements_of_any_shape():
    values, indices = ops.mstopk(tf.constant([[1.0, 5.0], [-7.0, 2.0]]), 2)
    assert values.numpy().tolist() == [5.0, -7.0]
    assert indices.numpy().tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (5,), (1,)])
def test_k_of_none_and_of_all(shape):
    x = tf.reshape(tf.range(np.prod(shape), dtype=tf.float32), shape)
    for k in {0, int(tf.size(x))}:
        values, indices = ops.mstopk(x, k)
        assert indices.numpy().tolist() == list(range(int(tf.size(x))))[:k]
        np.testing.assert_array_equal(values, tf.reshape(x, [-1])[:k])


@pytest.mark.parametrize("k", [-1, 6])
@pytest.mark.parametrize("samplings", [None, 30])
def test_k_out_of_range_is_refused(k, samplings):
    message = rf"k must be from 0 to the number of elements of x, 5. Received: k = {k}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.mstopk(tf.zeros(5), k, samplings=samplings)
    with pytest.raises(ValueError, match=message):
        tf.function(lambda: ops.mstopk(tf.zeros(5), k, samplings=samplings))()
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tf.function(lambda k: ops.mstopk(tf.zeros(5), k))(tf.constant(k))


def test_other_bad_input_is_refused():
    with pytest.raises(TypeError, match="`k` must be an integer. Received: k of float32"):
        ops.mstopk(tf.zeros(5), 2.0)
    with pytest.raises(TypeError, match="`k` must be an integer. Received: k of bool"):
        ops.mstopk(tf.zeros(5), True)
    with pytest.raises(TypeError, match="float32, float16 or bfloat16. Received: int32"):
        ops.mstopk(tf.zeros(5, tf.int32), 2)
    with pytest.raises(ValueError, match="`samplings` must be None.* Received: samplings=0"):
        ops.mstopk(tf.zeros(5), 2, samplings=0)
    with pytest.raises(TypeError, match="`residual` must be of float32. Received: float16"):
        ops.mstopk_with_feedback(tf.zeros(5), tf.zeros(5, tf.float16), 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"shape of x, \[5\].*\[4\]"):
        ops.mstopk_with_feedback(tf.zeros(5), tf.zeros(4), 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="k must be a scalar"):
        ops.mstopk(tf.zeros(5), [2])


def test_shapes_are_known_while_a_graph_is_made():
    @tf.function
    def select(x):
        values, indices = ops.mstopk(x, 7)
        assert values.shape == (7,)
        assert indices.shape == (7,)
        assert ops.mstopk_with_feedback(x, x, 7)[2].shape == x.shape
        assert ops.mstopk(x, tf.size(x) // 2)[0].shape.rank == 1
        return indices

    np.testing.assert_array_equal(
        select(tf.constant(VECTORS["normal"])), expected(VECTORS["normal"], 7)
    )


def test_steps_at_the_same_time_have_results_of_their_own():
    xs = tf.constant(
        np.stack([normal(20011, seed) * 10.0 ** (seed - 8) for seed in range(16)], axis=0)
    )

    @tf.function
    def select(xs):
        return tf.map_fn(
            lambda x: ops.mstopk(x, 50)[1], xs, fn_output_signature=tf.int32, parallel_iterations=8
        )

    for x, indices in zip(xs, select(xs), strict=True):
        np.testing.assert_array_equal(indices, expected(x, 50))


def test_feedback_sends_everything_in_the_end():
    random = np.random.default_rng(0)
    residual = tf.zeros(5003)
    total = np.zeros(5003)
    sent = np.zeros(5003)
    for _ in range(30):
        x = random.standard_normal(5003).astype("float32")
        values, indices, residual = ops.mstopk_with_feedback(x, residual, 500)
        total += x
        sent[indices] += values
    np.testing.assert_allclose(sent + residual, total, atol=1e-4)


def test_feedback_leaves_the_residual_it_was_given():
    given = tf.constant([5.0, 1.0])
    _, _, residual = ops.mstopk_with_feedback(tf.constant([1.0, 1.0]), given, 1)
    assert given.numpy().tolist() == [5.0, 1.0]
    assert residual.numpy().tolist() == [0.0, 2.0]


def recall(x, indices):
    return len(np.intersect1d(indices, expected(x, len(indices)))) / len(indices)


def published(x, k):
    values, indices = ops.mstopk(x, k, samplings=30)
    indices = indices.numpy()
    assert len(np.unique(indices)) == k  # in every case below
    assert (np.diff(indices) > 0).all()
    np.testing.assert_array_equal(values, np.asarray(x)[indices])
    return recall(x, indices)


def test_the_published_algorithm_is_exact_on_well_behaved_vectors():
    for name in ("normal", "uniform", "Laplace", "Student-t"):
        assert published(VECTORS[name].astype("float32"), 40) == 1.0


@pytest.mark.parametrize("value", [1e12, 1e30, np.inf, np.nan])
def test_the_published_algorithm_fails_on_one_outlier(value):
    x = but(value, 1 << 18)
    k = 262
    assert published(x, k) < 0.01
    assert recall(x, ops.mstopk(x, k)[1]) == 1.0


@pytest.mark.parametrize("name", ["few non-zeros", "all equal", "all zero", "tied", "denormals"])
def test_the_published_algorithm_still_selects_exactly_k(name):
    published(VECTORS[name].astype("float32"), 40)


def test_the_seed_places_the_random_part_of_the_published_algorithm():
    x = np.zeros(4001, "float32")
    places = {tuple(ops.mstopk(x, 3, samplings=5, seed=seed)[1].numpy()) for seed in range(5)}
    assert len(places) > 1
    again = ops.mstopk(x, 3, samplings=5, seed=1)[1]
    assert again.numpy().tolist() == ops.mstopk(x, 3, samplings=5, seed=1)[1].numpy().tolist()
