# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Epochs of `fit` from a cache: begun by hand, interrupted and resumed."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdear

pytestmark = pytest.mark.timeout(120)
EXAMPLES, BATCH = 50, 8
STEPS = 7


class Interrupted(Exception):
    pass


class Steps(keras.callbacks.Callback):
    """Notes which steps were done, and interrupts training before one of them."""

    def __init__(self, interrupt_at=None):
        super().__init__()
        self.done, self.epoch, self.interrupt_at = [], None, interrupt_at

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if len(self.done) == self.interrupt_at:
            raise Interrupted

    def on_train_batch_end(self, batch, logs=None):
        self.done.append((self.epoch, batch))


def model_of(steps_per_execution=1):
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [keras.Input([1]), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=steps_per_execution)
    return model


def data_of(**arguments):
    numbers = np.arange(EXAMPLES, dtype=np.float32)[:, np.newaxis] / EXAMPLES
    pairs = tf.data.Dataset.from_tensor_slices((numbers, numbers**2))
    return tfdear.data.DataCache(pairs, memory="1MB").batches(BATCH, seed=1, **arguments)


def weights_of(model):
    return [keras.ops.convert_to_numpy(v) for v in [*model.weights, *model.optimizer.variables]]


@pytest.fixture(scope="module")
def expected():
    model = model_of()
    model.fit(data_of(), epochs=3, verbose=0)
    return weights_of(model)


@pytest.mark.parametrize("interrupt_at", [0, 2, 3, 6, 7, 9, 14, 20])
def test_what_was_interrupted_goes_on_behind_the_last_backup(tmp_path, expected, interrupt_at):
    def callbacks(steps):
        return [keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=3), steps]

    with pytest.raises(Interrupted):
        model_of().fit(data_of(), epochs=3, verbose=0, callbacks=callbacks(Steps(interrupt_at)))
    model, steps = model_of(), Steps()
    history = model.fit(data_of(), epochs=3, verbose=0, callbacks=callbacks(steps))
    saved = interrupt_at // 3 * 3
    assert steps.done == [divmod(step, STEPS) for step in range(saved, 3 * STEPS)]
    assert history.epoch == list(range(saved // STEPS, 3))
    for found, wanted in zip(weights_of(model), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_several_steps_at_once(tmp_path, expected):
    def callbacks(steps):
        return [keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=2), steps]

    with pytest.raises(Interrupted):
        model_of(2).fit(data_of(), epochs=3, verbose=0, callbacks=callbacks(Steps(5)))
    model, steps = model_of(2), Steps()
    model.fit(data_of(), epochs=3, verbose=0, callbacks=callbacks(steps))
    # Keras counts one batch less in an epoch's first steps, and has saved the end of the first.
    # It calls several steps by the last of them, in older versions by the first.
    done = [(epoch, step // 2) for epoch, step in steps.done]
    assert done == [(epoch, step) for epoch in (1, 2) for step in range(4)]
    for found, wanted in zip(weights_of(model), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_one_iterator_for_all_epochs(tmp_path):
    def train(steps):
        model = model_of()
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=3)
        model.fit(
            data_of().repeat(),
            epochs=4,
            steps_per_epoch=5,
            verbose=0,
            callbacks=[*([backup] if steps else []), *([steps] if steps else [])],
        )
        return weights_of(model)

    wanted = train(None)
    with pytest.raises(Interrupted):
        train(Steps(13))
    steps = Steps()
    found = train(steps)
    assert steps.done == [divmod(step, 5) for step in range(12, 20)]
    for value, expected_value in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(value, expected_value)


class Once(keras.callbacks.BackupAndRestore):
    """Restores for the first `fit` alone."""

    begun = 0

    def on_train_begin(self, logs=None):
        self.begun += 1
        if self.begun == 1:
            super().on_train_begin(logs)


def test_trainings_that_follow_a_resumed_one(tmp_path, expected):
    def train(interrupt_at):
        model, steps = model_of(), Steps(interrupt_at)
        backup = Once(str(tmp_path / "backup"), save_freq=3, delete_checkpoint=False)
        metadata = tmp_path / "backup" / "training_metadata.json"
        first = json.loads(metadata.read_text())["epoch"] if metadata.exists() else 0
        for epoch in range(first, 3):
            model.fit(
                data_of(),
                epochs=epoch + 1,
                initial_epoch=epoch,
                verbose=0,
                callbacks=[backup, steps],
            )
        return model, steps

    with pytest.raises(Interrupted):
        train(11)
    model, steps = train(None)
    assert steps.done == [divmod(step, STEPS) for step in range(9, 3 * STEPS)]
    for found, wanted in zip(weights_of(model), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_start_by_hand(expected):
    model, steps = model_of(), Steps()
    model.fit(data_of(), epochs=1, verbose=0)
    model.fit(data_of().take(4), epochs=2, initial_epoch=1, verbose=0)
    model.fit(data_of(start=(1, 4)), epochs=3, initial_epoch=1, verbose=0, callbacks=[steps])
    assert steps.done == [divmod(step, STEPS) for step in range(STEPS + 4, 3 * STEPS)]
    for found, wanted in zip(weights_of(model), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_epochs_of_other_elements_begin_again(tmp_path, caplog):
    numbers = np.arange(EXAMPLES, dtype=np.float32)[:, np.newaxis]
    cache = tfdear.data.DataCache(
        tf.data.Dataset.from_tensor_slices((numbers, numbers)), memory="1MB"
    )

    def fit(steps):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=3)
        model_of().fit(cache.examples().batch(10), epochs=2, verbose=0, callbacks=[backup, steps])

    with pytest.raises(Interrupted):
        fit(Steps(8))
    assert json.loads((tmp_path / "backup" / "training_metadata.json").read_text())["batch"] == 0
    steps = Steps()
    fit(steps)
    assert steps.done == [(1, step) for step in range(5)]
    assert "an epoch, which begins again" in caplog.text
