# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains until one rank fails in the given way: failing_training.py KIND VICTIM [METHOD]."""

import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear


class Failure(keras.callbacks.Callback):
    """Fails after a few batches, in the middle of an epoch."""

    def __init__(self, kind):
        super().__init__()
        self._kind = kind

    def on_train_batch_end(self, batch, logs=None):
        if batch < 6:
            return
        print("fails now", flush=True)
        if self._kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self._kind == "raise":
            raise RuntimeError("the disk is full")
        elif self._kind == "exit":
            sys.exit(0)
        elif self._kind == "other_collective":
            STRATEGY.all_gather(tf.zeros([3, 4]))


KIND, VICTIM = sys.argv[1], int(sys.argv[2])
STRATEGY = tfdear.DearStrategy()
with STRATEGY.scope():
    model = keras.Sequential(
        [keras.layers.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
inputs = np.random.RandomState(0).randn(6000, 8).astype("float32")
if KIND == "on_the_chief_alone":
    if STRATEGY.is_chief:
        labels = {"y": inputs[:12, :1]} if sys.argv[3] == "evaluate" else {}
        getattr(model, sys.argv[3])(inputs[:12], **labels, verbose=0)
        print("returned", flush=True)
    sys.exit(0)
callbacks = [Failure(KIND)] if STRATEGY.rank == VICTIM else []
model.fit(inputs, inputs[:, :1], batch_size=6, epochs=200, verbose=0, callbacks=callbacks)
print("trained to the end", flush=True)
