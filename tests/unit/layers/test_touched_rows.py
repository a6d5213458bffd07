# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Tables of which only touched rows are updated, when their sums of gradients are replaced."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdear

ROWS, STEPS = 12, 3
IDS = np.array([[1, 2], [3, 3], [4, 1], [5, 6], [7, 5], [8, 8]])


def build(builds_optimizer=True):
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            tfdear.layers.ShardedEmbedding(ROWS, 3, updates="touched", name="words"),
            keras.layers.Lambda(lambda vectors: keras.ops.sum(vectors, (1, 2))),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=STEPS),
        lambda _, scores: keras.ops.sum(scores),
    )
    if builds_optimizer:
        model.optimizer.build(model.trainable_variables)
        # Rows that nobody touches keep a velocity, which any update would show.
        model.layers[0].embeddings.assign(np.ones((ROWS, 3)))
        model.optimizer.variables[-1].assign(np.ones((ROWS, 3)))
    return model


def train(model, steps):
    for number in steps:
        model.train_on_batch(IDS[number : number + 1], np.zeros(1))


def values(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


@pytest.fixture
def strategy():
    strategy = tfdear.DearStrategy()
    with strategy.scope():
        yield strategy


def test_sums_that_are_restored_belong_to_rows_that_were_touched(strategy):
    del strategy
    expected = build()
    train(expected, range(6))
    for steps in (4, 5):
        before, after = build(), build()
        train(before, range(steps))
        after.set_weights(before.get_weights())
        after.optimizer.set_weights([np.array(each) for each in before.optimizer.variables])
        train(after, range(steps, 6))
        for found, wanted in zip(values(after), values(expected), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_sums_that_a_checkpoint_has_before_the_optimizer_is_built(strategy, tmp_path):
    del strategy
    expected, before = build(), build()
    train(expected, range(6))
    train(before, range(4))
    saved = tf.train.Checkpoint(model=before, optimizer=before.optimizer).write(tmp_path / "saved")
    after = build(builds_optimizer=False)
    status = tf.train.Checkpoint(model=after, optimizer=after.optimizer).read(saved)
    train(after, [4])
    status.assert_consumed()
    train(after, [5])
    for found, wanted in zip(values(after), values(expected), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_rows_whose_sums_are_gone_are_not_updated(strategy):
    del strategy
    model = build()
    table = model.layers[0].embeddings
    first = [np.array(each) for each in model.optimizer.variables]
    train(model, [0, 1])
    model.optimizer.set_weights(first)
    train(model, [3, 4, 5])
    moved = np.flatnonzero(np.any(np.array(table) != 1, axis=1))
    np.testing.assert_array_equal(moved, [5, 6, 7, 8])


def make_other(steps=None):
    return keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps)


@pytest.mark.parametrize(("first", "second"), [(STEPS, None), (None, STEPS), (2, STEPS)])
def test_a_second_optimizer_beside_one_that_accumulates_is_refused(strategy, first, second):
    del strategy
    model = build()
    variables = model.trainable_variables
    gradients = [tf.ones((ROWS, 3))]
    optimizers = [make_other(first), make_other(second)]
    optimizers[0].apply(gradients, variables)
    with pytest.raises(ValueError, match="Two optimizers update layer 'words'"):
        optimizers[1].apply(gradients, variables)
    optimizers[0].apply(gradients, variables)
    del optimizers[0]
    optimizers[0].apply(gradients, variables)


def test_a_model_gets_another_optimizer_while_it_accumulates(strategy):
    del strategy
    model = build()
    loss, first = model.loss, model.optimizer
    for optimizer in (
        keras.optimizers.LossScaleOptimizer(make_other(2)),
        make_other(),
        first,
    ):
        train(model, [0, 1])
        model.compile(optimizer, loss)
    train(model, range(STEPS))


def test_two_optimizers_without_accumulation_take_turns(strategy):
    del strategy
    variables = build().trainable_variables
    optimizers = [make_other(), make_other()]
    for optimizer in optimizers * 2:
        optimizer.apply([tf.ones((ROWS, 3))], variables)


def test_a_branch_that_is_not_taken_touches_no_row(strategy):
    del strategy
    model = build()
    layer, variables = model.layers[0], model.trainable_variables
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(variables)
    optimizer.variables[-1].assign(np.ones((ROWS, 3)))

    @tf.function
    def step(is_used):
        with tf.GradientTape() as tape:
            total = tf.cond(
                is_used, lambda: tf.reduce_sum(layer(tf.constant([1, 2]))), lambda: tf.constant(0.0)
            )
        optimizer.apply(tape.gradient(total, variables), variables)

    step(tf.constant(False))
    np.testing.assert_array_equal(layer.get_weights()[0], np.ones((ROWS, 3)))
    step(tf.constant(True))
    moved = np.flatnonzero(np.any(layer.get_weights()[0] != 1, axis=1))
    np.testing.assert_array_equal(moved, [1, 2])
