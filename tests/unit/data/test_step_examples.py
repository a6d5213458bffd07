# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which of a step's arguments say how many examples a rank has."""

import types

import numpy as np
import pytest
import tensorflow as tf

from tfdear.data import empty_batch, examples

IMAGES = tf.TensorSpec([None, 4, 4], tf.float32)
LABELS = tf.TensorSpec([None], tf.int64)


def elements(*specifications):
    known = examples.Elements()
    for specification in specifications:
        known.add(specification)
    return known


def batch(rows):
    return tf.zeros([rows, 4, 4]), tf.zeros([rows], tf.int64)


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if "leading" in record.getMessage()]


@pytest.fixture(autouse=True)
def every_warning(monkeypatch):
    monkeypatch.setattr(
        examples.logging,
        "log_first_n",
        lambda level, text, n, *a: examples.logging.log(level, text, *a),
    )
    examples.logging.get_absl_logger().propagate = True


CLASS_WEIGHTS = tf.ones([10])
MASK = tf.ones([3, 4])


@pytest.mark.parametrize(
    "arguments",
    [
        (CLASS_WEIGHTS, *batch(2)),
        (*batch(2), CLASS_WEIGHTS),
        (CLASS_WEIGHTS, 0.5, MASK, batch(2)),
        ((tf.constant(1.0), batch(2)), {"weights": np.ones(7), "step": 3}),
        (tf.Variable(tf.ones([9, 4, 4])), *batch(2)),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_the_distributed_element_counts_whatever_comes_before_it(arguments, compiled, caplog):
    known = elements((IMAGES, LABELS), {"x": IMAGES, "y": IMAGES})
    variables = [v for v in tf.nest.flatten(arguments) if isinstance(v, tf.Variable)]
    tensors = [v for v in tf.nest.flatten(arguments) if not isinstance(v, tf.Variable)]
    function = lambda *values: examples.count((variables, values), known)  # noqa: E731
    if compiled:
        signature = [
            tf.TensorSpec([None, *value.shape[1:]] if value.shape.rank else [], value.dtype)
            for value in map(tf.convert_to_tensor, tensors)
        ]
        function = tf.function(function, input_signature=signature)
    assert int(function(*tensors)) == 2
    assert not warnings_of(caplog)


def test_ragged_and_sparse_elements_count_their_rows():
    ragged = tf.ragged.constant([[1], [2, 3], []])
    sparse = tf.sparse.from_dense(tf.ones([3, 5]))
    weights = tf.ones([8])
    assert (
        int(
            examples.count((weights, ragged), elements(tf.RaggedTensorSpec([None, None], tf.int32)))
        )
        == 3
    )
    assert (
        int(examples.count((weights, sparse), elements(tf.SparseTensorSpec([None, 5], tf.float32))))
        == 3
    )


def test_without_a_known_element_the_leading_dimensions_agree(caplog):
    assert int(examples.count((0.1, np.ones((6, 2)), tf.zeros([6])), elements())) == 6
    assert examples.count((0.1, tf.constant(2), "text", None), elements()) is None
    assert not warnings_of(caplog)


def test_different_leading_dimensions_are_warned_about(caplog):
    rows = examples.count((CLASS_WEIGHTS, tf.zeros([0, 3]), tf.zeros([0])), elements())
    assert int(rows) == 0
    (message,) = warnings_of(caplog)
    assert "[10, 0, 0]" in message and "as the distributed dataset yields it" in message


def test_different_leading_dimensions_in_a_graph_are_warned_about(capfd):
    unknown = tf.TensorSpec([None, 3])
    function = tf.function(
        lambda *values: examples.count((CLASS_WEIGHTS, *values), elements()),
        input_signature=[unknown, unknown],
    )
    assert int(function(tf.zeros([4, 3]), tf.zeros([4, 3]))) == 4
    assert "leading dimensions" not in capfd.readouterr().err
    for _ in range(3):
        assert int(function(tf.zeros([4, 3]), tf.zeros([5, 3]))) == 4
    assert capfd.readouterr().err.count("different leading dimensions") == 1


@pytest.mark.parametrize("traced_for", ["eager", "any rows", "these rows"])
def test_sparse_and_ragged_batches_of_a_rank_without_examples_have_a_row(traced_for):
    sparse = tf.SparseTensorSpec([None, 4], tf.float32)
    ragged = tf.RaggedTensorSpec([None, None], tf.int32, ragged_rank=1)
    uniform = tf.RaggedTensorSpec([None, 2, None], tf.int32, ragged_rank=2)
    known = elements()
    known.add((ragged, uniform, sparse, LABELS))

    def fill(*values):
        return empty_batch.fill(values, examples.count(values, known), known)

    def cut(*values):
        count = examples.count(values, known)
        filled = empty_batch.fill(values, count, known)
        dense = tf.ones(filled[2].dense_shape), tf.ones([filled[0].nrows()])
        return empty_batch.cut((*filled, *dense), count)

    if traced_for != "eager":
        signature = [ragged, uniform, sparse, LABELS] if traced_for == "any rows" else None
        fill = tf.function(fill, input_signature=signature)
        cut = tf.function(cut, input_signature=signature)
    cells = tf.sparse.from_dense([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 3.0, 0.0]])
    words = tf.ragged.constant([[1, 2], []], tf.int32)
    pairs = tf.ragged.constant([[[1], []], [[2, 3], [4]]], tf.int32)
    pairs = tf.RaggedTensor.from_uniform_row_length(pairs.values, 2)
    given = (words, pairs, cells, tf.constant([5, 6], tf.int64))
    filled = fill(*given)
    np.testing.assert_array_equal(tf.sparse.to_dense(filled[2]), tf.sparse.to_dense(cells))
    assert [value.to_list() for value in filled[:2]] == [value.to_list() for value in given[:2]]
    empty = (words[:0], pairs[:0], tf.sparse.slice(cells, [0, 0], [0, 4]), given[3][:0])
    filled = fill(*empty)
    np.testing.assert_array_equal(tf.sparse.to_dense(filled[2]), np.zeros([1, 4]))
    assert filled[0].to_list() == [[]]
    assert filled[1].to_list() == [[[], []]]
    np.testing.assert_array_equal(filled[3], [0])
    for values in (given, empty):
        returned = cut(*values)
        np.testing.assert_array_equal(
            tf.sparse.to_dense(returned[2]), tf.sparse.to_dense(values[2])
        )
        assert [value.to_list() for value in returned[:2]] == [v.to_list() for v in values[:2]]
        np.testing.assert_array_equal(returned[3], values[3])
        rows = len(values[3])
        assert [value.shape[0] for value in returned[4:]] == [rows, rows]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_rank_without_examples_computes_on_a_row_of_the_data(compiled):
    known = elements()
    row = [np.full([1, 4, 4], 2.0, "float32"), np.array([7], "int64")]
    known.add((IMAGES, LABELS), types.SimpleNamespace(row=row, is_uneven=False))

    def fill(*values):
        return empty_batch.fill((CLASS_WEIGHTS, values), examples.count(values, known), known)

    if compiled:
        fill = tf.function(fill, input_signature=[IMAGES, LABELS])
    weights, made_up = fill(*batch(0))
    np.testing.assert_array_equal(weights, CLASS_WEIGHTS)
    for value, expected in zip(made_up, row, strict=True):
        np.testing.assert_array_equal(value, expected)
    for value, expected in zip(fill(*batch(3))[1], batch(3), strict=True):
        np.testing.assert_array_equal(value, expected)
    row.clear()
    if not compiled:
        assert float(tf.reduce_sum(tf.abs(fill(*batch(0))[1][0]))) == 0.0
