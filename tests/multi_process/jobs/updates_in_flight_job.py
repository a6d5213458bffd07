# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Uses variables while updates of them are late: updates_in_flight_job.py CASE [CASE ...]."""

import gc
import sys
import time
import weakref

import keras
import numpy as np
import tensorflow as tf

import tfdear

IDS = (np.arange(64).reshape(32, 2) % 40).astype("int32")
LABELS = np.ones([32, 1], "float32")
strategy = tfdear.DearStrategy(timeout=60)


def model_of(embedding, make_optimizer):
    """An embedding with a layer behind it."""
    with strategy.scope():
        layers = [keras.Input([2], dtype="int32"), embedding, keras.layers.Flatten()]
        model = keras.Sequential([*layers, keras.layers.Dense(1)])
        model.compile(make_optimizer(), "mse")
    return model


def sharded(make_optimizer):
    return model_of(tfdear.layers.ShardedEmbedding(40, 8, exchange="all_to_all"), make_optimizer)


def momentum(model, shape):
    """The slot of its table, as TensorFlow's variable."""
    return next(v for v in model.optimizer.variables if tuple(v.shape) == shape).value


def dense(make_optimizer):
    with strategy.scope():
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile(make_optimizer(), "mse")
    return model


def same_on_all_ranks(value):
    gathered = strategy.all_gather(tf.constant(value)[None]).numpy()
    for other in gathered[1:]:
        np.testing.assert_array_equal(other, gathered[0])


def averages_replace_a_table_that_others_still_read():
    """`fit` ends with a change of all rows that has no gradient."""

    class Reading(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if strategy.rank == 0:
                time.sleep(2)
            self.seen = self.model.weights[0].numpy()

    average = {"use_ema": True, "ema_momentum": 0.5}
    model = sharded(lambda: keras.optimizers.SGD(0.5, momentum=0.9, **average))
    reading = Reading()
    model.fit(IDS, LABELS, batch_size=8, shuffle=False, callbacks=[reading], verbose=0)
    replaced = model.weights[0].numpy()
    same_on_all_ranks(reading.seen)
    same_on_all_ranks(replaced)
    assert (reading.seen != replaced).any()


def reads_after_an_assignment_have_it_of_all_ranks():
    table = sharded(keras.optimizers.SGD).weights[0].value
    groups = strategy.extended.lookup_groups
    close = groups.close
    if strategy.rank == 1:  # The slower one.
        groups.close = lambda: (time.sleep(0.05), close())
    for number in range(10):
        table.assign(np.full([40, 8], number, "float32"))
        np.testing.assert_array_equal(table.numpy(), number)
    groups.close = close


def a_function_assigns_a_slot_of_a_table():
    model = sharded(lambda: keras.optimizers.SGD(0.1, momentum=0.9))
    model.train_on_batch(IDS, LABELS)
    slot = momentum(model, (40, 8))
    reset = tf.function(lambda: slot.assign(tf.zeros([40, 8]), read_value=False))
    for _ in range(5):
        model.train_on_batch(IDS, LABELS)
        reset()
        assert not slot.numpy().any()


def a_function_reads_a_slot_of_a_plain_table():
    embedding = keras.layers.Embedding(20000, 16)
    model = model_of(embedding, lambda: keras.optimizers.SGD(0.1, momentum=0.9))
    model.train_on_batch(IDS * 0, LABELS)
    slot = momentum(model, (20000, 16))
    read = tf.function(lambda: tf.identity(slot))
    for _ in range(3):
        model.train_on_batch(IDS * 0 + 1, LABELS)  # Row 0 misses updates.
        found = read().numpy()
        np.testing.assert_array_equal(found, slot.numpy())


class ByHandle(keras.optimizers.Optimizer):
    """Assigns a slot, and changes the variable with an op on its handle."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.moments = [self.add_variable_from_reference(v, "moment") for v in variables]

    def update_step(self, gradient, variable, learning_rate):
        moment = self.moments[self._get_variable_index(variable)]
        self.assign(moment, 0.5 * moment + gradient)
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle,
            alpha=tf.cast(learning_rate, tf.float32),
            delta=tf.convert_to_tensor(moment),
        )


def an_update_writes_through_a_handle():
    model = dense(lambda: ByHandle(learning_rate=0.1))
    for _ in range(5):
        before = model.get_weights()[0]
        model.train_on_batch(IDS.astype("float32"), LABELS)
        after = model.get_weights()[0]
        moment = model.optimizer.moments[0].numpy()
        np.testing.assert_allclose(after, before - 0.1 * moment, rtol=1e-4)


class Masked(keras.optimizers.Optimizer):
    """Has a slot that its update only reads."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.masks = [
                self.add_variable_from_reference(v, "mask", initializer="ones") for v in variables
            ]

    def update_step(self, gradient, variable, learning_rate):
        mask = self.masks[self._get_variable_index(variable)]
        self.assign_sub(variable, gradient * learning_rate * mask)


def an_update_reads_a_slot_that_is_assigned_after_it():
    model = dense(lambda: Masked(learning_rate=0.001))
    for _ in range(5):
        before = model.get_weights()[0]
        model.train_on_batch(IDS.astype("float32"), LABELS)
        model.optimizer.masks[0].assign(np.zeros([2, 1]))
        after = model.get_weights()[0]
        model.optimizer.masks[0].assign(np.ones([2, 1]))
        assert (after != before).any()
        same_on_all_ranks(after)


def a_table_lets_go_of_the_slots_of_former_optimizers():
    model = sharded(keras.optimizers.SGD)
    for _ in range(35):  # Of more slots than a table can have.
        with strategy.scope():
            model.compile(keras.optimizers.Adam(), "mse", run_eagerly=False)
        model.train_on_batch(IDS, LABELS)
    del model
    gc.collect()


def a_model_is_deleted_right_after_a_step():
    model = sharded(keras.optimizers.Adam)
    model.train_on_batch(IDS, LABELS)
    table = weakref.ref(model.weights[0].value)
    del model
    keras.backend.clear_session()
    gc.collect()
    assert table() is None, "the table of a deleted model is kept"


for case in sys.argv[1:]:
    globals()[case]()
    strategy.synchronize()
    print("passed:", case, flush=True)
