# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A training under the compression that TFDEAR_COMPRESSION names, which may crash and go on."""

import json
import os
import pathlib
import sys
import time
import warnings

import keras
import numpy as np
import tensorflow as tf

import tfdear

DIRECTORY = pathlib.Path(sys.argv[1])
# What to do: "train", "crash" (after two of four epochs), "resume", with Keras's backups; "save"
# and "load" with weights in files, in the middle; "checkpoint" and "restore" in a custom loop.
TASK = os.environ.get("CASE_TASK", "train")
# Of a file system that TensorFlow names in paths, or of Python's.
WEIGHTS = os.environ.get("CASE_PREFIX", "") + str(DIRECTORY / "half.weights.h5")
LAST_FIRST = "CASE_LAST_FIRST" in os.environ
WIDTH = int(os.environ.get("CASE_WIDTH", "48"))
PAUSE = float(os.environ.get("CASE_PAUSE", "0.002"))  # Seconds.
EPOCHS, STEPS, BATCH = *((1, 20) if "CASE_ONE_EPOCH" in os.environ else (4, 5)), 16
RANDOM = np.random.RandomState(7)
X = RANDOM.randn(BATCH * STEPS, 24).astype("float32")
Y = RANDOM.randn(BATCH * STEPS, 3).astype("float32")


class Pause(keras.layers.Layer):
    """The identity, with a pause both ways: passes that are long enough to work under."""

    def call(self, inputs):
        def pause(value):
            time.sleep(PAUSE)
            return value

        def paused(value):
            return tf.ensure_shape(tf.numpy_function(pause, [value], value.dtype), value.shape)

        @tf.custom_gradient
        def identity(x):
            return paused(x), paused

        return identity(inputs)


class LastFirst(keras.Model):
    """Calls its layers in the reverse of the order in which their variables were made."""

    def __init__(self, made):
        super().__init__()
        self.made = made

    def build(self, input_shape):
        for layer in self.made:
            layer.build((None, 24 if layer is self.made[-1] else WIDTH))
        self.built = True

    def call(self, inputs):
        for layer in reversed(self.made):
            inputs = layer(inputs)
        return inputs


class Plans(keras.callbacks.Callback):
    """Notes the plan of every step."""

    def __init__(self):
        super().__init__()
        self.of_step = []
        self.last = None

    def on_train_batch_end(self, batch, logs=None):
        self.last = self.model.distribute_strategy.statistics()
        self.of_step.append(json.dumps((self.last["plan"] or {}).get("steps")))


def make(strategy):
    with strategy.scope():
        if LAST_FIRST:
            made = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(5)]
            made[2:2] = [Pause()]
            model = LastFirst([keras.layers.Lambda(lambda x: x[:, :3]), *made])
        else:
            layers = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(3)]
            layers.insert(1, Pause())
            model = keras.Sequential([keras.layers.Input((24,)), *layers, keras.layers.Dense(3)])
        optimizer = os.environ.get("CASE_OPTIMIZER", "keras.optimizers.SGD(0.05, momentum=0.5)")
        model.compile(eval(optimizer), "mse")
    return model


class Crash(keras.callbacks.Callback):
    """Ends all ranks at once: one that is still busy would report that it lost the others."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == EPOCHS // 2:
            sys.stdout.flush()
            strategy = self.model.distribute_strategy
            (DIRECTORY / f"crash_{strategy.rank}").touch()
            end = time.monotonic() + 60
            while len(list(DIRECTORY.glob("crash_*"))) < strategy.num_replicas_in_sync:
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"rank {strategy.rank} is alone: others did not come to crash"
                    )
                time.sleep(0.001)
            os._exit(0)


def with_fit(strategy):
    model = make(strategy)
    arguments = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    callbacks = [PLANS]
    if schedule := os.environ.get("CASE_SCHEDULE"):
        callbacks.append(tfdear.callbacks.CompressionSchedule(eval(schedule)))
    if TASK in ("crash", "resume"):
        callbacks.append(keras.callbacks.BackupAndRestore(str(DIRECTORY / "backup")))
    if TASK == "crash":
        callbacks.append(Crash())
    if TASK == "load":
        with strategy.scope():
            model.optimizer.build(model.trainable_variables)  # Else its state is not loaded.
        model.load_weights(WEIGHTS)
        model.fit(X, Y, epochs=EPOCHS, initial_epoch=EPOCHS // 2, callbacks=callbacks, **arguments)
        return model.get_weights()
    if TASK == "save":
        saver = keras.callbacks.ModelCheckpoint(WEIGHTS, save_weights_only=True)
        model.fit(X, Y, epochs=EPOCHS // 2, callbacks=[*callbacks, saver], **arguments)
    else:
        model.fit(X, Y, epochs=EPOCHS, callbacks=callbacks, **arguments)
    return model.get_weights()


def with_a_loop(strategy):
    model = make(strategy)
    optimizer = model.optimizer
    checkpoint = tf.train.Checkpoint(
        model=model, optimizer=optimizer, residual=strategy.compression_state
    )

    @tf.function
    def step(batch):
        def replica(x, y):
            with tf.GradientTape() as tape:
                loss = tf.nn.compute_average_loss(
                    tf.reduce_mean((model(x, training=True) - y) ** 2, -1),
                    global_batch_size=BATCH,
                )
            optimizer.apply_gradients(
                zip(
                    tape.gradient(loss, model.trainable_variables),
                    model.trainable_variables,
                    strict=True,
                )
            )

        strategy.run(replica, batch)

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    dataset = strategy.experimental_distribute_dataset(dataset)
    epochs = EPOCHS
    if TASK == "restore":
        with strategy.scope():
            optimizer.build(model.trainable_variables)
        checkpoint.read(str(DIRECTORY / f"rank_{strategy.rank}" / "loop")).assert_consumed()
        epochs = EPOCHS // 2
    if TASK == "checkpoint":
        epochs = EPOCHS // 2
    for _ in range(epochs):
        for batch in dataset:
            step(batch)
    if TASK == "checkpoint":
        checkpoint.write(str(DIRECTORY / f"rank_{strategy.rank}" / "loop"))
    return model.get_weights()


PLANS = Plans()

if __name__ == "__main__":
    keras.utils.set_random_seed(3)
    strategy = tfdear.DearStrategy(timeout=30.0)
    looped = TASK in ("loop", "checkpoint", "restore")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        weights = (with_a_loop if looped else with_fit)(strategy)
    events = strategy.events()
    strategy_statistics = PLANS.last or strategy.statistics()
    np.savez(
        DIRECTORY / f"{TASK}_{strategy.rank}.npz",
        kinds=[event.kind for event in events],
        numbers=[(e.ticket, e.subject, e.detail, e.begin, e.end) for e in events],
        plans=PLANS.of_step,
        buckets=json.dumps(strategy_statistics["plan"]["buckets"]),
        warnings=[str(w.message) for w in caught if "held back" in str(w.message)],
        within_nodes=strategy_statistics["transports"].get("gradients_intra", "nothing"),
        **{f"w{i}": weight for i, weight in enumerate(weights)},
    )
