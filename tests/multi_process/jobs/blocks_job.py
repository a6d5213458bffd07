# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains a model of words with the options of the environment; stores weights, plans and events."""

import dataclasses
import json
import pathlib
import sys
import time

import keras
import numpy as np

import tfdear
from tfdear.engine import plan as engine_plan

layers = keras.layers
STEPS = 30


class AttentionBlock(layers.Layer):
    """What a model of language has many of."""

    def __init__(self, width):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, width // 2)
        self.inner, self.outer = layers.Dense(3 * width, "relu"), layers.Dense(width)
        self.norm = layers.LayerNormalization()

    def call(self, x):
        x = self.norm(x + self.attention(x, x))
        return x + self.outer(self.inner(x))


class StepsSeen(keras.callbacks.Callback):
    """Remembers the plan of each step, and all events."""

    def __init__(self):
        super().__init__()
        self.events = []
        self.plans = {}

    def on_train_batch_end(self, batch, logs=None):
        del batch, logs
        # Steps of so small a model end before rank 0 has looked at the one before and planned.
        time.sleep(0.02)
        self.events += strategy.events()
        last = [event for event in self.events if event.kind == "step"][-1]
        plan = engine_plan.decode(strategy._job.engine.plan(last.subject)[0])
        self.plans[last.ticket] = dataclasses.asdict(plan)


keras.utils.set_random_seed(5)
strategy = tfdear.DearStrategy()
table = tfdear.layers.ShardedEmbedding(60, 16)
blocks = [
    layers.LSTM(16, return_sequences=True),
    layers.Bidirectional(layers.LSTM(8, return_sequences=True)),
    AttentionBlock(16),
    AttentionBlock(16),
    layers.Dense(60, name="scores"),
]
with strategy.scope():
    model = keras.Sequential([keras.Input((7,), dtype="int32"), table, *blocks])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), loss)
# Some words never come.
words = np.random.RandomState(0).randint(0, 50, (STEPS * 12, 7))
seen = StepsSeen()
fit = model.fit(words, (words + 1) % 60, batch_size=12, verbose=0, shuffle=False, callbacks=[seen])
weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
paths = [variable.path for variable in model.trainable_variables]
places = {
    layer.name: [paths.index(variable.path) for variable in layer.trainable_variables]
    for layer in (table, *blocks)
}
kinds = ("step", "contribute", "reduce_scatter", "all_gather", "all_reduce", "sparse_gather")
path = pathlib.Path(sys.argv[1], f"rank_{strategy.rank}.json")
path.write_text(
    json.dumps(
        {
            "weights": weights.tobytes().hex(),
            "loss": fit.history["loss"],
            "blocks": list(places.values()),  # In the order of the forward pass; the table first.
            "plans": seen.plans,
            "events": [
                [event.kind, event.ticket, event.subject, event.begin, event.end]
                for event in seen.events
                if event.kind.endswith(kinds)
            ],
        }
    )
)
