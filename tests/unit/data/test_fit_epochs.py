# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Epochs of `fit` from a cache: begun by hand, interrupted and resumed."""

import contextlib
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


def batches_of(batch_size, seed=1, **arguments):
    numbers = np.arange(EXAMPLES, dtype=np.float32)[:, np.newaxis] / EXAMPLES
    pairs = tf.data.Dataset.from_tensor_slices((numbers, numbers**2))
    return tfdear.data.DataCache(pairs, memory="1MB").batches(batch_size, seed=seed, **arguments)


def data_of(**arguments):
    return batches_of(BATCH, **arguments)


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


class Places(keras.Sequential):
    """Notes the places of what it trains on."""

    seen: list

    def train_step(self, data):
        features, labels, places = data
        tf.numpy_function(lambda numbers: self.seen.extend(numbers.tolist()), [places], [])
        return super().train_step((features, labels))


def places_of_training(dataset, callbacks=(), epochs=2, **arguments):
    """The places of the steps that `fit` does, until it is interrupted."""
    keras.utils.set_random_seed(5)
    model = Places([keras.Input([1]), keras.layers.Dense(1)])
    model.seen = []
    model.compile("sgd", "mse", jit_compile=False)
    with contextlib.suppress(Interrupted):
        model.fit(dataset, epochs=epochs, verbose=0, callbacks=list(callbacks), **arguments)
    return model.seen


@pytest.mark.parametrize("interrupt_at", [5, 10, 22, 25])
def test_epochs_of_several_epochs_of_the_cache(tmp_path, interrupt_at):
    dataset = data_of(positions=True).repeat(3)
    every = places_of_training(dataset)
    assert sorted(every) == list(range(2 * 3 * EXAMPLES))

    def train(steps):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=3)
        return places_of_training(data_of(positions=True).repeat(3), [backup, steps])

    train(Steps(interrupt_at))
    steps = Steps()
    rest = train(steps)
    saved = interrupt_at // 3 * 3
    assert steps.done == [divmod(step, 3 * STEPS) for step in range(saved, 2 * 3 * STEPS)]
    assert rest == every[len(every) - len(rest) :]
    whole, more = divmod(saved, STEPS)
    assert len(rest) == len(every) - whole * EXAMPLES - more * BATCH


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: dataset.shuffle(4, seed=3),
        lambda dataset: dataset.unbatch().batch(BATCH),
        lambda dataset: dataset.map(
            lambda *batch: batch, num_parallel_calls=2, deterministic=False
        ),
    ],
)
def test_epochs_of_changed_batches_begin_again(tmp_path, caplog, change):
    def train(steps):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), save_freq=3)
        dataset = change(data_of(positions=True))
        return places_of_training(dataset, [backup, steps], epochs=1)

    train(Steps(4))
    assert sorted(train(Steps())) == list(range(EXAMPLES))
    assert "an epoch, which begins again" in caplog.text


def test_a_list_of_callbacks_of_the_script(expected):
    model, steps = model_of(), Steps()
    callbacks = keras.callbacks.CallbackList([steps], model=model, add_history=True)
    dataset = data_of()
    for epoch in range(3):
        model.fit(dataset, epochs=epoch + 1, initial_epoch=epoch, verbose=0, callbacks=callbacks)
    assert steps.done == [divmod(step, STEPS) for step in range(3 * STEPS)]
    assert len(callbacks.callbacks) == 2
    for found, wanted in zip(weights_of(model), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def backup_of(folder, **arguments):
    return keras.callbacks.BackupAndRestore(str(folder / "backup"), **arguments)


@pytest.mark.parametrize(("batch_size", "again"), [(4, 0), (5, 4), (12, 0), (50, 24)])
def test_batches_of_another_size_go_on_behind_the_same_examples(
    tmp_path, caplog, batch_size, again
):
    places_of_training(data_of(positions=True), [backup_of(tmp_path, save_freq=3), Steps(4)])
    rest = places_of_training(
        batches_of(batch_size, positions=True), [backup_of(tmp_path, save_freq=3)]
    )
    assert sorted(rest) == list(range(3 * BATCH - again, 2 * EXAMPLES))
    assert (f"sees {again} examples again" in caplog.text) == (again > 0)


def test_batches_of_another_size_and_a_given_number_of_steps_begin_again(tmp_path, caplog):
    def train(batch_size, steps, *callbacks):
        dataset = batches_of(batch_size, positions=True).repeat()
        return places_of_training(
            dataset, [backup_of(tmp_path, save_freq=3), *callbacks], epochs=1, steps_per_epoch=steps
        )

    train(8, 6, Steps(4))
    assert sorted(train(4, 12)) == list(range(48))
    assert "batches have 4 examples of all ranks instead of 8" in caplog.text


def test_examples_in_another_order_begin_again(tmp_path, caplog):
    places_of_training(
        data_of(positions=True), [backup_of(tmp_path, save_freq=3), Steps(4)], epochs=1
    )
    other = batches_of(BATCH, seed=2, positions=True)
    rest = places_of_training(other, [backup_of(tmp_path, save_freq=3)], epochs=1)
    assert sorted(rest) == list(range(EXAMPLES))
    assert "the order of examples is another one than before" in caplog.text


def test_a_backup_of_a_training_that_began_later(tmp_path, expected):
    def train(*callbacks):
        model = model_of()
        model.fit(data_of(), epochs=1, verbose=0)
        callbacks = [backup_of(tmp_path, save_freq=3), *callbacks]
        with contextlib.suppress(Interrupted):
            model.fit(data_of(), epochs=3, initial_epoch=1, verbose=0, callbacks=callbacks)
        return model

    train(Steps(5))
    steps = Steps()
    model = train(steps)
    assert steps.done == [divmod(step, STEPS) for step in range(STEPS + 3, 3 * STEPS)]
    for found, wanted in zip(weights_of(model), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("before", "after", "done"), [("epoch", 3, STEPS), (3, "epoch", 9), (3, 5, 9)]
)
def test_backups_may_be_made_more_or_less_often_than_before(tmp_path, before, after, done):
    every = places_of_training(data_of(positions=True))

    def train(save_freq, interrupt_at=None):
        callbacks = [backup_of(tmp_path, save_freq=save_freq), Steps(interrupt_at)]
        return places_of_training(data_of(positions=True), callbacks)

    train(before, 11)
    epochs, steps = divmod(done, STEPS)
    assert train(after) == every[epochs * EXAMPLES + steps * BATCH :]


def test_a_training_that_ended_between_two_files_of_its_first_backup(tmp_path):
    def train(interrupt_at):
        callbacks = [backup_of(tmp_path, save_freq=3), Steps(interrupt_at)]
        return places_of_training(data_of(positions=True), callbacks, epochs=1)

    every = train(5)
    (tmp_path / "backup" / "training_metadata.json").unlink()
    rest = train(None)
    assert rest[: 2 * BATCH] == every[3 * BATCH :]
    assert len(rest) == EXAMPLES - 3 * BATCH


def test_a_data_set_that_comes_twice_has_two_epochs():
    dataset = data_of(positions=True)
    assert sorted(places_of_training(dataset.concatenate(dataset))) == list(range(4 * EXAMPLES))


def test_validation_on_the_training_data():
    model, plain = model_of(), data_of()
    model.fit(plain, epochs=2, validation_data=plain, verbose=0)
    with pytest.raises(ValueError, match="is made from the same `DataCache.batches"):
        model.fit(plain.repeat(), steps_per_epoch=5, validation_data=plain.take(2), verbose=0)
    model.fit(plain.repeat(), steps_per_epoch=5, validation_data=data_of(), verbose=0)
