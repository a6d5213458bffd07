# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Sampled softmax, reversible embeddings and divided models: 1 to 4 ranks against one process."""

import functools

import case_reports
import keras
import numpy as np
import pytest
import ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

HAS_REVERSIBLE = hasattr(keras.layers, "ReversibleEmbedding")
SEVERAL = [2, *(pytest.param(size, marks=pytest.mark.long) for size in (3, 4))]
WORLD_SIZES = [1, *SEVERAL]  # One rank is the reference.


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    @functools.cache
    def train_once(world_size):
        directory = tmp_path_factory.mktemp(f"ranks_{world_size}")
        return case_reports.run_job("output_layers_job.py", world_size, directory, timeout=400)

    return train_once


def check_all_close(report, reference, relative, absolute):
    """Everything that is a number."""
    assert report.keys() == reference.keys()
    for key, expected in reference.items():
        if key not in ("digests", "bytes") and expected.dtype.kind == "f":
            np.testing.assert_allclose(
                report[key], expected, rtol=relative, atol=absolute, err_msg=key
            )


@pytest.mark.timeout(500)
@pytest.mark.parametrize("case", ["sampled_by_column", "sampled_by_row", "shared_table"])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_sampled_softmax_does_not_depend_on_the_number_of_ranks(train, world_size, case):
    (reference,) = train(1)
    for report in train(world_size):
        # Adam divides by gradients that may be tiny.
        rounding = 1e-3 if case == "shared_table" else 2e-6
        np.testing.assert_allclose(
            report[case]["history/loss"], reference[case]["history/loss"], rtol=1e-6
        )
        check_all_close(report[case], reference[case], 1e-6, rounding)


@pytest.mark.timeout(500)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_what_is_evaluated_is_the_full_softmax(train, world_size):
    for report in train(world_size):
        for case in ("sampled_by_column", "sampled_by_row"):
            found = report[case]
            np.testing.assert_allclose(found["evaluated"], found["full"], rtol=1e-6)
            np.testing.assert_allclose(found["history/val_loss"][-1], found["full"], rtol=1e-6)
            # The loss in training is another one.
            assert abs(found["history/loss"][-1] - found["full"]) > 0.1


@pytest.mark.timeout(500)
@pytest.mark.skipif(not HAS_REVERSIBLE, reason="this Keras has no ReversibleEmbedding")
@pytest.mark.parametrize(
    "case, dense, tolerance",
    [
        ("tied", "dense_tied", 5e-6),
        ("tied_by_column", "dense_tied", 5e-6),
        ("tied_adam", "dense_tied_adam", 1e-3),
        ("untied", "dense_untied", 5e-6),
    ],
)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_reversible_layer_is_that_of_keras(train, world_size, case, dense, tolerance):
    (reference,) = train(1)
    for report in train(world_size):
        check_all_close(report[case], reference[dense], tolerance, tolerance)


@pytest.mark.timeout(500)
@pytest.mark.parametrize("world_size", SEVERAL)
def test_rows_and_a_dense_gradient_of_one_variable_are_added_up(train, world_size):
    (reference,) = train(1)
    for report in train(world_size):
        check_all_close(report["tied_by_hand"], reference["tied_by_hand"], 2e-6, 5e-6)


@pytest.mark.timeout(500)
@pytest.mark.skipif(not HAS_REVERSIBLE, reason="this Keras has no ReversibleEmbedding")
@pytest.mark.parametrize("world_size", SEVERAL)
def test_a_tied_layer_sends_what_a_dense_one_does(train, world_size):
    report = train(world_size)[0]
    sent = {case: int(report[case]["bytes"]) for case in ("tied", "tied_by_column", "dense_tied")}
    print(world_size, sent, sent["tied"] / sent["dense_tied"])
    # And it is all counted: the table travels in lanes of its own.
    assert 0.8 * sent["dense_tied"] < sent["tied"] <= 1.05 * sent["dense_tied"]


@pytest.mark.timeout(500)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_finished_model_keeps_its_weights_when_it_is_divided(train, world_size):
    (reference,) = train(1)
    for report in train(world_size):
        found = report["divided"]
        assert found["names"].tolist() == ["classes", "words"]
        assert set(found["classes"].tolist()) == {"ShardedEmbedding"}
        assert found["again"] == 0
        np.testing.assert_array_equal(found["before"], found["after"])
        # Some processors round products of few rows otherwise than those of many.
        np.testing.assert_allclose(
            found["before"], reference["divided"]["before"], rtol=1e-6, atol=1e-9
        )
        np.testing.assert_allclose(
            found["history/loss"], reference["divided"]["history/loss"], rtol=1e-6
        )
        # A file of it is one of plain layers; and so is the model again.
        np.testing.assert_array_equal(found["trained"], found["loaded"])
        np.testing.assert_array_equal(found["trained"], found["whole again"])
        assert found["plain again"].tolist() == ["Embedding", "Embedding"]
        assert "has slots for the tables" in str(found["refused"])


DISAGREEING = """
    import sys

    import tensorflow as tf

    import tfdear

    strategy = tfdear.DearStrategy()
    with strategy.scope():
        table = tfdear.layers.ShardedEmbedding(200, 8, exchange=sys.argv[1])
        loss = tfdear.losses.SampledSoftmax(
            table, samples=21 if sys.argv[2] == "samples" and strategy.rank == 1 else 20)

    @tf.function
    def step(labels, features):
        return tf.reduce_mean(loss.sampled(labels, features))

    inputs = tf.constant([1, strategy.rank]), tf.ones([2, 8])
    assert float(step(*inputs)) > 0 or sys.argv[2] == "samples"
    strategy.barrier()
    if sys.argv[2] == "calls" and strategy.rank == 1:
        loss.sampled_step.assign_add(1)
    try:
        step(*inputs)
    except tf.errors.InvalidArgumentError as error:
        print("refused:", error.message)
    strategy.barrier()
"""


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    "exchange", ["all_to_all", pytest.param("all_gather", marks=pytest.mark.long)]
)
def test_ranks_that_disagree_on_candidates_say_so(exchange):
    outcomes = ranks.run_ranks(3, DISAGREEING, arguments=(exchange, "calls"))
    for code, output in outcomes:
        assert code == 0, output[-3000:]
        (line,) = [line for line in output.splitlines() if line.startswith("refused:")]
        assert "ranks drew different candidates for the sampled softmax" in output
        assert "table of 200 x 8" in output
        # Rank 1 is not as rank 0.
        assert "[0] [1]" in output.replace("\n", " ")
        del line


@pytest.mark.timeout(150)
def test_ranks_with_other_numbers_of_candidates_say_so():
    for code, output in ranks.run_ranks(2, DISAGREEING, arguments=("all_to_all", "samples")):
        assert code != 0
        assert "ranks drew different candidates for the sampled softmax" in output
