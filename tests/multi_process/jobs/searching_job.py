# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains while `Bayesian` searches; the best bucket size is another one after a while.

First few buckets are fast. When the search has ended and was watched for a while, many are.
"""

import json
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfdear
from tfdear import fusion
from tfdear.engine import plan as engine_plan

DIRECTORY = pathlib.Path(sys.argv[1])
LAYERS, WIDTH = 16, 64
MOST_STEPS = 2500
# Steps after which the ranks hear from rank 0 how far the search is.
ASK_EVERY = 8
# Of the step time that is watched after the search: as many as are taken for the usual one.
WATCHED = 3


class Recorded(fusion.Bayesian):
    """Remembers what it was told, whichever copy of it."""

    told: list = []

    def observe(self, seconds_per_step):
        was_done, size = self.done, self.bytes
        super().observe(seconds_per_step)
        self.told.append({"size": size, "was_done": was_done, "done": self.done, "best": self.best})


class Stages(keras.callbacks.Callback):
    """Makes steps as slow as the buckets and the stage say, and remembers them."""

    def __init__(self, strategy):
        super().__init__()
        self.strategy = strategy
        self.stage = 0
        self.buckets = []
        self.looks = []

    def on_train_batch_end(self, batch, logs=None):
        del logs
        layout = {e.subject for e in self.strategy.events() if e.kind == "step"}
        if layout:
            (self.layout,) = layout
        words, _ = self.strategy._job.engine.plan(self.layout)
        count = len(engine_plan.decode(words).buckets)
        self.buckets.append(count)
        self.looks.append(len(Recorded.told))
        time.sleep(0.01 + (0.01 * (LAYERS - count) if self.stage == 1 else 0.006 * (count - 1)))
        if batch % ASK_EVERY == ASK_EVERY - 1:
            self.stage = int(self.strategy.broadcast(tf.constant(self.next_stage())))
            self.model.stop_training = self.stage == 2

    def next_stage(self):
        """The stage that rank 0 decides on: 1 after the first search, 2 after the second."""
        told = Recorded.told
        ends = [n for n, trial in enumerate(told) if trial["done"] and not trial["was_done"]]
        return sum(len(told) > end + WATCHED for end in ends[:2])


keras.utils.set_random_seed(3)
strategy = tfdear.DearStrategy(
    # Only what takes twice the usual time is a drift: a busy machine is none.
    fusion=Recorded(
        low=1 << 13, high=1 << 20, start=1 << 16, trials=10, steps_per_trial=3, drift=1.0
    ),
)
with strategy.scope():
    hidden = [keras.layers.Dense(WIDTH, "tanh", use_bias=False) for _ in range(LAYERS)]
    model = keras.Sequential([keras.layers.Input((WIDTH,)), *hidden])
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
x = np.random.RandomState(0).randn(16, WIDTH).astype("float32")
dataset = tf.data.Dataset.from_tensors((x, x[:, ::-1])).cache().repeat()
stages = Stages(strategy)
model.fit(dataset, steps_per_epoch=MOST_STEPS, verbose=0, callbacks=[stages])
strategy.synchronize()
np.savez(DIRECTORY / f"rank_{strategy.rank}.npz", *model.get_weights())
report = {"told": Recorded.told, "buckets": stages.buckets, "looks": stages.looks}
(DIRECTORY / f"rank_{strategy.rank}.json").write_text(json.dumps(report))
