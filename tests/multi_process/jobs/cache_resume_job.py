# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains from a cache, is killed where it is told, and goes on; stores weights and what it read."""

import os
import pathlib
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear

DIRECTORY, TASK = pathlib.Path(sys.argv[1]), sys.argv[2]
EXAMPLES, BATCH, EPOCHS = 103, 8, 3
KILL_AT = int(os.environ.get("CASE_KILL_AT", "-1"))
AT_ONCE = int(os.environ.get("CASE_STEPS_PER_EXECUTION", "1"))
strategy = tfdear.DearStrategy()
seen = []


class Kill(keras.callbacks.Callback):
    """Ends rank 0 without a word."""

    steps = 0

    def on_train_batch_begin(self, batch, logs=None):
        if strategy.rank == 0 and self.steps >= KILL_AT >= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, batch, logs=None):
        self.steps += AT_ONCE


class Recorder(keras.Model):
    """Notes the places of what it trains on."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(5, "tanh")
        self.out = keras.layers.Dense(1)

    def call(self, features):
        return self.out(self.hidden(features))

    def train_step(self, data):
        features, labels, positions = data
        tf.numpy_function(lambda numbers: seen.extend(numbers.tolist()), [positions], [])
        return super().train_step((features, labels))


def augmented(features, labels, positions):
    """Adds noise that depends on the place of an example alone."""
    noise = tf.map_fn(
        lambda place: tf.random.stateless_normal([3], tf.stack([1, place])),
        positions,
        fn_output_signature=tf.float32,
    )
    return features + 0.1 * noise, labels, positions


numbers = np.arange(EXAMPLES)
values = np.stack([numbers % 7, numbers % 11, numbers % 3], 1).astype(np.float32) / 10
cache = tfdear.data.DataCache(
    tf.data.Dataset.from_tensor_slices((values, numbers.astype(np.float32) / 100)), memory="1MB"
)
keras.utils.set_random_seed(3)
with strategy.scope():
    model = Recorder()
    model.compile(
        keras.optimizers.Adam(0.01), "mse", steps_per_execution=AT_ONCE, jit_compile=False
    )
    model.build((None, 3))
callbacks = []
if TASK != "train":
    callbacks = [keras.callbacks.BackupAndRestore(str(DIRECTORY / "backup"), save_freq=3), Kill()]
model.fit(
    cache.batches(BATCH, seed=4, positions=True).map(augmented),
    epochs=EPOCHS,
    verbose=0,
    callbacks=callbacks,
)
weights = [keras.ops.convert_to_numpy(v) for v in [*model.variables, *model.optimizer.variables]]
np.savez(DIRECTORY / f"{TASK}_{strategy.rank}.npz", np.array(seen, np.int64), *weights)
strategy.barrier()
