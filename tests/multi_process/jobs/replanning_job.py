# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains one model while rank 0 changes its mind about tensor fusion every three steps."""

import os
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
STEPS_OF_EPOCH = 40


class Rotation:
    """Every planner in turn, each for one trial."""

    needs_profile = True
    steps_per_trial = 2  # And one while plans change.
    done = False

    def __init__(self):
        self._planners = [
            fusion.NoFusion(),
            fusion.SingleBucket(),
            fusion.FixedCount(3),
            fusion.MGWFBP(),
            fusion.Planned(),
            fusion.Blocks(),
            fusion.Planned(fusion.Blocks(groups=[("dense", "dense_2")])),
            fusion.FixedSize(2048),
            fusion.Bayesian(low=512, high=1 << 20, start=1 << 16),
            fusion.RandomSearch(low=512, high=1 << 20),
            fusion.GridSearch(low=512, high=1 << 20),
        ]
        self._turn = 0

    def observe(self, seconds_per_step):
        assert seconds_per_step > 0
        self._turn += 1

    def buckets(self, trace, costs, schedule):
        planner = self._planners[self._turn % len(self._planners)]
        return planner.buckets(trace, costs, schedule)


class PlansSeen(keras.callbacks.Callback):
    """Remembers which plans this rank had, and how often the step was traced."""

    def __init__(self, strategy):
        super().__init__()
        self.strategy = strategy
        self.plans = set()
        self.digests = []

    def on_train_batch_end(self, batch, logs=None):
        del batch, logs
        # Steps of so small a model end before rank 0 has looked at the one before and planned.
        time.sleep(0.02)
        for layout in {e.subject for e in self.strategy.events() if e.kind == "step"}:
            words, _ = self.strategy._job.engine.plan(layout)
            plan = engine_plan.decode(words)
            self.plans.add((plan.buckets, plan.steps))


keras.utils.set_random_seed(3)
strategy = tfdear.DearStrategy(
    schedule=os.environ["CASE_SCHEDULE"],
    collective=os.environ.get("CASE_COLLECTIVE", "ring"),
    fusion=Rotation() if os.environ["CASE_PLANNER"] == "rotation" else fusion.FixedSize(),
)
traces = 0


class Model(keras.Model):
    """Dense and sparse gradients, of several sizes and two data types."""

    def __init__(self):
        super().__init__()
        self.words = keras.layers.Embedding(50, 12)
        self.hidden = [keras.layers.Dense(size, activation="tanh") for size in (33, 64, 7, 1, 40)]
        self.half = keras.layers.Dense(9, dtype="float64")
        self.last = keras.layers.Dense(3)

    def call(self, tokens):
        global traces
        traces += not tf.executing_eagerly()
        x = tf.reduce_mean(self.words(tokens), axis=1)
        for layer in self.hidden:
            x = layer(x)
        return self.last(tf.cast(self.half(x), tf.float32))


with strategy.scope():
    model = Model()
    # Where sums are rounded in another order: an optimizer that does not divide by what is small.
    optimizer = (
        keras.optimizers.SGD(0.05, momentum=0.9)
        if os.environ["CASE_OPTIMIZER"] == "sgd"
        else keras.optimizers.Adam(0.01)
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
random = np.random.RandomState(0)
tokens = random.randint(0, 50, (STEPS_OF_EPOCH * 12, 6))
labels = (tokens.sum(1) % 3).astype("int64")
seen = PlansSeen(strategy)
model.fit(tokens, labels, batch_size=12, epochs=1, verbose=0, shuffle=False)
before = traces
history = model.fit(
    tokens, labels, batch_size=12, epochs=2, verbose=0, shuffle=False, callbacks=[seen]
)
np.savez(
    DIRECTORY / f"rank_{strategy.rank}.npz",
    loss=history.history["loss"],
    plans=len(seen.plans),
    retraces=traces - before,
    seen=repr(sorted(seen.plans)),
    **{f"w{i}": weight for i, weight in enumerate(model.get_weights())},
)
