# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Averages of tables of which only touched rows are updated, and weights that they overwrite."""

import keras
import numpy as np
import pytest

import tfdear

ROWS, WIDTH, EXAMPLES, BATCH = 12, 3, 12, 2
random = np.random.default_rng(3)
# Most steps leave most rows alone, and nobody touches the last one.
IDS = random.integers(0, ROWS - 1, (EXAMPLES, 2))
OTHERS = random.integers(0, ROWS, (5, 2))


@pytest.fixture
def strategy():
    strategy = tfdear.DearStrategy()
    with strategy.scope():
        yield strategy


def make(is_sharded, optimizer, constraint=None):
    initializer = keras.initializers.RandomUniform(-1, 1, seed=2)
    words = (
        tfdear.layers.ShardedEmbedding(
            ROWS, WIDTH, initializer, embeddings_constraint=constraint, updates="touched"
        )
        if is_sharded
        else keras.layers.Embedding(ROWS, WIDTH, initializer)
    )
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            words,
            keras.layers.Lambda(lambda vectors: keras.ops.sum(keras.ops.square(vectors), (1, 2))),
        ]
    )
    model.compile(optimizer(), lambda _, scores: keras.ops.mean(scores, keepdims=True))
    return model


class Recorder(keras.callbacks.Callback):
    """What others see at the end of every epoch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(values(self.model))


def values(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def fit(model, swap_on_epoch):
    recorder = Recorder()
    history = model.fit(
        IDS,
        np.zeros(EXAMPLES),
        batch_size=BATCH,
        epochs=3,
        shuffle=False,
        verbose=0,
        validation_data=(OTHERS, np.zeros(len(OTHERS))),
        callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch), recorder],
    )
    losses = [history.history[name] for name in ("loss", "val_loss")]
    return [*losses, *sum(recorder.seen, []), *values(model), model.predict(OTHERS, verbose=0)]


@pytest.mark.parametrize("swap_on_epoch", [False, True])
def test_swap_of_weights_and_averages(swap_on_epoch):
    def optimizer():
        # Moves no row without a gradient, so that plain Keras's numbers are those of touched rows.
        return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8)

    expected = fit(make(False, optimizer), swap_on_epoch)
    with tfdear.DearStrategy().scope():
        found = fit(make(True, optimizer), swap_on_epoch)
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_averages_belong_to_variables_after_one_was_frozen(strategy):
    del strategy
    model = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            tfdear.layers.ShardedEmbedding(ROWS, WIDTH, updates="touched"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse")
    model.fit(IDS, np.zeros((EXAMPLES, 2, 1)), verbose=0)
    averages = model.optimizer._model_variables_moving_average
    for layer in model.layers:
        layer.trainable = False
        model.fit(IDS, np.zeros((EXAMPLES, 2, 1)), verbose=0)
        for variable, average in zip(model.variables, averages, strict=True):
            if variable.trainable:
                np.testing.assert_array_equal(variable, average)
        layer.trainable = True


def test_constraint_after_an_overwrite(strategy):
    """A row that was negative before it was touched has a negative average for long."""
    del strategy
    every = 4

    def optimizer():
        return keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=every)

    model = make(True, optimizer, keras.constraints.NonNeg())
    for step in range(2 * every):
        ids = IDS[step * BATCH % EXAMPLES :][:BATCH]
        before = np.array(model.layers[0].embeddings)
        model.train_on_batch(ids, np.zeros(BATCH))
        table, average = (np.array(values(model)[place]) for place in (0, -1))
        if (step + 1) % every:
            others = np.setdiff1d(np.arange(ROWS), ids)
            np.testing.assert_array_equal(table[others], before[others])
        else:
            assert np.any(average < 0)
            np.testing.assert_array_equal(table, np.maximum(average, 0))
