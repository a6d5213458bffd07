# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Reads and trains from a cache, and stores what this rank saw."""

import json
import os
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear

directory, memory = pathlib.Path(sys.argv[1]), sys.argv[2]
strategy = tfdear.DearStrategy()


def example_of(record):
    number = tf.ensure_shape(tf.io.parse_tensor(record, tf.int64), [])
    values = tf.cast(tf.stack([number % 7, number % 11, number % 3]), tf.float32) / 10
    return values, tf.cast(number, tf.float32) / 1000


files = tfdear.data.TFRecordFiles(str(directory / "*.tfrecord"))
on_disk = os.environ.get("CASE_DIRECTORY")
cache = tfdear.data.DataCache(
    files,
    example_of,
    memory=memory,
    directory=on_disk,
    placement=os.environ.get("CASE_PLACEMENT", "sharded"),
)
seen = {}
for batch_size in (1, 8, 64, 2000):
    dataset = cache.batches(batch_size, seed=1, drop_remainder=batch_size == 8)
    seen[batch_size] = [
        [np.rint(labels * 1000).astype(int).tolist() for _, labels in dataset.as_numpy_iterator()]
        for _ in range(2)
    ]
read = cache.statistics()

with strategy.scope():
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [keras.Input([3]), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.1, 0.9), "mse")
history = model.fit(
    cache.batches(64), epochs=4, initial_epoch=1, validation_data=cache.batches(50), verbose=0
)
report = {
    "seen": seen,
    "statistics": read,
    "afterwards": cache.statistics(),
    "history": history.history,
    "weights": [np.asarray(weight).tolist() for weight in model.weights],
    "predictions": model.predict(cache.batches(64, shuffle=False).map(lambda x, y: x), verbose=0)
    .ravel()
    .tolist(),
}
(directory / f"rank_{strategy.rank}.json").write_text(json.dumps(report))
