# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains a model that ends with a table of 94 MB, with the default settings; writes what the line
carried in the last steps.

table_job.py OUT
"""

import json
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear

OUT = pathlib.Path(sys.argv[1])
WORDS, UNITS, BLOCKS, ROWS, POSITIONS = 22_950, 1024, 10, 4, 768
STEPS, OBSERVED_STEPS = 14, 4


class WordScores(keras.layers.Layer):
    """The product with a table of words, transposed: its gradient is dense and ready first."""

    def build(self, shape):
        self.table = self.add_weight(shape=(WORDS, shape[-1]), name="table")

    def call(self, inputs):
        return tf.matmul(inputs, self.table, transpose_b=True)


keras.utils.set_random_seed(1)
strategy = tfdear.DearStrategy()
with strategy.scope():
    # Computation takes longer than the line, so that what is urgent is wanted soon.
    blocks = [keras.layers.Dense(UNITS, activation="tanh") for _ in range(BLOCKS)]
    mean = keras.layers.GlobalAveragePooling1D()
    model = keras.Sequential([keras.layers.Input((POSITIONS, UNITS)), *blocks, mean, WordScores()])
    model.compile(
        keras.optimizers.SGD(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
random = np.random.RandomState(0)
rows = ROWS * strategy.world_size
x = random.randn(rows * STEPS, POSITIONS, UNITS).astype("float32")
y = random.randint(0, WORDS, rows * STEPS)
model.fit(x, y, batch_size=rows, verbose=0)
plan = strategy.statistics()["plan"]
strategy.events()
model.fit(x[: rows * OBSERVED_STEPS], y[: rows * OBSERVED_STEPS], batch_size=rows, verbose=0)
strategy.synchronize()
events = [
    {name: getattr(event, name) for name in ("kind", "ticket", "subject", "detail", "begin", "end")}
    for event in strategy.events()
    if event.kind in ("reduce_scatter", "all_gather")
]
OUT.with_suffix(f".{strategy.rank}").write_text(
    json.dumps({"plan": plan, "plan afterwards": strategy.statistics()["plan"], "events": events})
)
