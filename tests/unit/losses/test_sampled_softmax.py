# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The loss of an output layer over very many classes, in one process."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdear
from tfdear.losses import candidates

CLASSES, COLUMNS, SAMPLES, SEED = 60, 8, 25, 5


def make(scope=None, bias=True, **arguments):
    with scope or contextlib.nullcontext():
        table = tfdear.layers.ShardedEmbedding(CLASSES, COLUMNS)
        biases = tfdear.layers.ShardedEmbedding(CLASSES, 1) if bias else None
        arguments = {"samples": SAMPLES, "seed": SEED, "block_rows": 7, **arguments}
        return table, biases, tfdear.losses.SampledSoftmax(table, biases, **arguments)


def batch(shape=(4, 3)):
    random = np.random.RandomState(0)
    # Frequent classes, which are candidates too, and rare ones.
    labels = random.choice([0, 1, 2, 5, 40, CLASSES - 1], shape)
    return tf.constant(labels), tf.constant(random.randn(*shape, COLUMNS).astype("float32"))


@pytest.mark.parametrize("with_strategy", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_loss_and_gradients_are_those_of_tensorflow(with_strategy, bias):
    scope = tfdear.DearStrategy().scope() if with_strategy else None
    table, biases, loss = make(scope, bias)
    labels, features = batch()
    weights = tf.constant(table.get_weights()[0])
    offsets = tf.constant(biases.get_weights()[0][:, 0] if bias else np.zeros(CLASSES, "float32"))
    for step in range(3):
        drawn, tries = candidates.draw(SEED, step, SAMPLES, CLASSES)
        right = tf.reshape(labels, (-1, 1))
        assert set(drawn.numpy()) & set(labels.numpy().ravel())  # Accidental hits.
        counts = [
            tf.exp(candidates.log_expected_count(ids, tries, SAMPLES, CLASSES))
            for ids in (right, drawn)
        ]
        with tf.GradientTape() as tape:
            tape.watch([weights, offsets, features])
            expected = tf.nn.sampled_softmax_loss(
                weights,
                offsets,
                right,
                tf.reshape(features, (-1, COLUMNS)),
                SAMPLES,
                CLASSES,
                sampled_values=(tf.cast(drawn, tf.int64), *counts),
            )
        expected_gradients = tape.gradient(expected, [weights, offsets, features])
        layers = [table, biases] if bias else [table]
        variables = [layer.trainable_weights[0].value for layer in layers]
        with tf.GradientTape() as tape:
            tape.watch(features)
            found = loss.call(labels, features)
        gradients = tape.gradient(found, [*variables, features])
        np.testing.assert_allclose(tf.reshape(found, [-1]), expected, rtol=1e-5)
        if not bias:
            expected_gradients.pop(1)
        for gradient, other in zip(gradients, expected_gradients, strict=True):
            gradient, other = tf.convert_to_tensor(gradient), tf.convert_to_tensor(other)
            gradient = tf.reshape(gradient, other.shape)
            np.testing.assert_allclose(gradient, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (5, 1)])
def test_without_a_tape_it_is_the_full_softmax(shape):
    table, biases, loss = make()
    labels, features = batch(shape)
    scores = features @ table.get_weights()[0].T + biases.get_weights()[0][:, 0]
    expected = keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)
    for function in (loss.call, tf.function(loss.call)):
        np.testing.assert_allclose(function(labels, features), expected, rtol=1e-5)
    np.testing.assert_allclose(loss(labels, features), np.mean(expected), rtol=1e-5)
    assert int(loss.sampled_step) == 0


def test_large_scores_do_not_overflow():
    table, _, loss = make(bias=False)
    labels, features = batch((4,))
    features *= 1e4
    scores = features @ table.get_weights()[0].T
    expected = keras.losses.sparse_categorical_crossentropy(labels, scores, from_logits=True)
    np.testing.assert_allclose(loss.full(labels, features), expected, rtol=1e-4, atol=1e-2)


def test_a_label_needs_no_dimension_of_its_own():
    table, _, loss = make()
    labels, features = batch((5,))
    found = loss.full(labels[:, tf.newaxis], features)
    np.testing.assert_array_equal(found, loss.full(labels, features))


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="from 1 to the 60 classes. Received: samples=61"):
        make(samples=61)
    with pytest.raises(ValueError, match="block_rows"):
        make(block_rows=0)
    with pytest.raises(TypeError, match="`table` must be a tfdear.layers.ShardedEmbedding"):
        tfdear.losses.SampledSoftmax(keras.layers.Embedding(10, 2))
    with pytest.raises(TypeError, match="`table`"):
        tfdear.losses.SampledSoftmax(None)
    table = tfdear.layers.ShardedEmbedding(10, 2)
    with pytest.raises(ValueError, match="one column and the table's 10 rows"):
        tfdear.losses.SampledSoftmax(table, table)
    _, _, loss = make()
    with pytest.raises(ValueError, match="last dimension is 8"):
        loss.full(tf.constant([1]), tf.zeros([1, 5]))
    huge = tfdear.layers.ShardedEmbedding((1 << 24) + 1, 1)
    with pytest.raises(ValueError, match="at most 2"):
        tfdear.losses.SampledSoftmax(huge)


def test_classes_are_drawn_from_python_s_seed():
    def first():
        keras.utils.set_random_seed(3)
        return make(seed=None)[2]

    labels, features = batch()
    with tf.GradientTape():
        tables = [first() for _ in range(2)]
        found = [loss.call(labels, features) for loss in tables]
    np.testing.assert_array_equal(*found)


def gradients_of_nothing():
    return [tf.zeros((CLASSES, COLUMNS))]


@pytest.mark.parametrize("kind", ["accumulating", "scaled", "of another optimizer"])
def test_candidates_are_drawn_anew_in_each_step(kind):
    table, _, loss = make()
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=4)
    if kind == "scaled":  # As `compile` does with `mixed_float16`.
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    loss.follow(optimizer)
    values = []
    for step in range(4):
        if step == 2 and kind != "of another optimizer":
            # Another process, which goes on: it has the optimizer's steps alone.
            loss.sampled_step.assign(0)
        with tf.GradientTape() as tape:
            tape.watch(tf.constant(0.0))
            values.append(float(loss(*batch())))
        if kind != "of another optimizer":
            optimizer.apply(gradients_of_nothing(), table.trainable_variables)
    with tf.GradientTape() as tape:
        tape.watch(tf.constant(0.0))
        loss.sampled_step.assign(0)
        loss.follow(keras.optimizers.SGD())
        expected = [float(loss(*batch())) for _ in range(4)]
    assert values == expected
    assert len(set(values)) == 4


def test_fit_draws_by_the_steps_of_its_optimizer():
    with tfdear.DearStrategy().scope():
        _, _, loss = make(bias=False)
        model = keras.Sequential([keras.Input((COLUMNS,)), keras.layers.Dense(COLUMNS)])
        model.compile(keras.optimizers.SGD(0.0), loss)
    labels, features = batch((4,))

    def losses(epochs):
        return model.fit(features, labels, epochs=epochs, shuffle=False, verbose=0).history["loss"]

    found = losses(3)
    loss.sampled_step.assign(0)  # As in a process that goes on after three steps.
    found += losses(2)
    loss.sampled_step.assign(0)
    model.optimizer.iterations.assign(0)
    assert losses(5) == found
    assert len(set(found)) == 5
