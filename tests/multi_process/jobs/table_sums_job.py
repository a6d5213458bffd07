# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Reads and replaces sums of gradients of sharded tables in the middle of an accumulation."""

import time

import keras
import numpy as np
import tensorflow as tf

import tfdear

ROWS, WIDTH, STEPS = 12, 32, 3
IDS = np.array([[1, 2], [3, 3], [4, 1], [5, 6]])
strategy = tfdear.DearStrategy(timeout=60.0)


class LeftHalf(keras.layers.Layer):
    """Sums of the columns that the first rank holds."""

    def call(self, vectors):
        return keras.ops.sum(vectors[..., : WIDTH // 2], (1, 2))


def build(**arguments):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((2,), dtype="int32"),
                tfdear.layers.ShardedEmbedding(ROWS, WIDTH, updates="touched", **arguments),
                LeftHalf(),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=STEPS),
            lambda _, scores: keras.ops.sum(scores),
        )
        model.optimizer.build(model.trainable_variables)
        # Rows that nobody touches keep a velocity, which any update would show.
        model.layers[0].embeddings.assign(np.ones((ROWS, WIDTH)))
        model.optimizer.variables[-1].assign(np.ones((ROWS, WIDTH)))
    return model


def values(model):
    # As they lie in the ranks' memory when all have read.
    found = [each.numpy() for each in (*model.variables, *model.optimizer.variables)]
    strategy.barrier()
    return found


def train(model, steps):
    for number in steps:
        model.train_on_batch(IDS[[number, number]], np.zeros(2))


def restored():
    """Rows whose sums are zero in the columns of a rank are updated in these, too."""
    models = [build(partition="column") for _ in range(3)]
    expected, before, after = models
    train(expected, range(STEPS))
    train(before, range(2))
    after.set_weights(before.get_weights())
    strategy.barrier()
    after.optimizer.set_weights([each.numpy() for each in before.optimizer.variables])
    train(after, range(2, STEPS))
    for found, wanted in zip(values(after), values(expected), strict=True):
        np.testing.assert_array_equal(found, wanted)


def late():
    """Sums that a late rank's gradients still go to are read, and replaced, with these."""
    model = build(exchange="all_gather")
    table, optimizer = model.layers[0].embeddings, model.optimizer
    (sums,) = [each for each in optimizer.variables if "gradient_accumulator" in each.path]

    @tf.function
    def step(ids):
        def on_rank(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(ids))
            optimizer.apply(tape.gradient(loss, [table]), [table])

        strategy.run(on_rank, (ids,))

    def step_with_late_rank():
        strategy.barrier()
        if strategy.rank == 1:
            time.sleep(1)
        step(tf.constant(IDS[:1]))

    step(tf.constant(IDS[:1]))
    step_with_late_rank()
    wanted = np.zeros((ROWS, WIDTH))
    wanted[IDS[0], : WIDTH // 2] = 2 * strategy.world_size
    np.testing.assert_array_equal(sums.numpy(), wanted)
    step(tf.constant(IDS[:1]))
    step_with_late_rank()
    sums.assign(np.ones((ROWS, WIDTH)))
    np.testing.assert_array_equal(sums.numpy(), np.ones((ROWS, WIDTH)))


restored()
late()
