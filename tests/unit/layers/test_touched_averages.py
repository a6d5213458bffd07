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


def make(is_sharded, optimizer):
    initializer = keras.initializers.RandomUniform(-1, 1, seed=2)
    words = (
        tfdear.layers.ShardedEmbedding(ROWS, WIDTH, initializer, updates="touched")
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
