# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains with a sharded table until one rank is killed or stopped within a part of a step.

sharded_failures_job.py SIGNAL PART VICTIM DIRECTORY

PART is "ids", "vectors" or "rows", collectives of a step, or "save", by rank 0 alone.
"""

import os
import pathlib
import signal
import sys
import threading
import time

import keras
import numpy as np

import tfdear
from tfdear.gradients.sharded_variable import ShardedVariable

SIGNAL, PART, VICTIM = signal.Signals[sys.argv[1]], sys.argv[2], int(sys.argv[3])
FILE = pathlib.Path(sys.argv[4]) / "model.keras"
# What the groups of such collectives, and they themselves, are called.
COLLECTIVES = {"ids": " embedding_ids", "vectors": " embedding_vectors", "rows": "embedding_rows "}
strategy = tfdear.DearStrategy()


def fail():
    print("fails now", flush=True)
    os.kill(os.getpid(), SIGNAL)


def name_of(collective):
    return f"{collective['group']} {collective['signature']}"


class FailureInCollective(keras.callbacks.Callback):
    """Fails within a collective of some kind, after some batches."""

    def on_train_batch_end(self, batch, logs=None):
        del logs
        if batch == 5:
            threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        engine = strategy._job.engine
        while not any(COLLECTIVES[PART] in name for name in map(name_of, engine.in_flight())):
            time.sleep(0.0005)
        fail()


def fail_in_reads(method):
    """Lets a method of tables fail when it is called the second time: in the middle of a file."""
    original = getattr(ShardedVariable, method)
    calls = []

    def failing(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            fail()
        return original(*args, **kwargs)

    setattr(ShardedVariable, method, failing)


with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            tfdear.layers.ShardedEmbedding(60, 6, name="words"),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
ids = np.random.default_rng(0).integers(0, 60, (1200, 4))
is_victim = strategy.rank == VICTIM
callbacks = [FailureInCollective()] if is_victim and PART != "save" else []
epochs = 1 if PART == "save" else 200
model.fit(ids, ids[:, :1] / 60.0, 12, epochs=epochs, verbose=0, callbacks=callbacks)
if PART == "save":
    if strategy.is_chief:
        model.save(FILE)
    strategy.barrier()
    if is_victim:
        # The chief reads rows of all ranks, and every rank hands out what it holds.
        fail_in_reads("read_rows" if VICTIM == 0 else "read_shard")
    strategy.barrier()
    if strategy.is_chief:
        model.save(FILE)
    strategy.barrier()
print("came to the end", flush=True)
