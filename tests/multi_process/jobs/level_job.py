# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains a small network and writes down weights, events, bytes and statistics of this rank."""

import pathlib
import pickle
import sys

import keras
import numpy as np

import tfdear
from tfdear import fusion
from tfdear.base import names

WARM_UP, STEPS, BATCH = 4, 12, 24

keras.utils.set_random_seed(3)
# Several buckets, and the last tensor larger than any.
strategy = tfdear.DearStrategy(fusion=fusion.FixedSize(64 << 10))
with strategy.scope():
    model = keras.Sequential(
        [keras.layers.Input((96,))]
        + [keras.layers.Dense(size, activation="tanh") for size in (203, 130, 77, 300)]
        + [keras.layers.Dense(5)]
    )
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
random = np.random.RandomState(0)
x = random.randn(STEPS * BATCH, 96).astype("float32")
y = random.randn(STEPS * BATCH, 5).astype("float32")
engine = strategy._job.engine


def bytes_sent():
    strategy.synchronize()
    strategy.barrier()
    lanes = names.Lane
    return {lane.name: engine.counters(lane)["bytes_sent"] for lane in lanes}


# Up to the last plan.
model.fit(x[: WARM_UP * BATCH], y[: WARM_UP * BATCH], batch_size=BATCH, verbose=0, shuffle=False)
model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False)
before = bytes_sent()
strategy.events()
strategy.statistics()
model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
after = bytes_sent()
report = {
    "weights": [np.asarray(weight) for weight in model.get_weights()],
    "events": [(e.kind, e.ticket, e.subject, e.detail, e.begin, e.end) for e in strategy.events()],
    "bytes_sent": {lane: after[lane] - before[lane] for lane in after},
    "statistics": strategy.statistics(),
    "costs": strategy._job.costs,
    "levels": strategy._job.groups.level_sizes,
    "steps": 2 * STEPS,
}
path = pathlib.Path(sys.argv[1]) / f"rank_{strategy.rank}.pickle"
path.write_bytes(pickle.dumps(report))
