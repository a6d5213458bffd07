# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Uses a cache over several nodes in several ways, and stores what this rank saw."""

import gc
import json
import os
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfdear

directory = pathlib.Path(sys.argv[1])
EXAMPLES, BATCH = 1003, 12
strategy = tfdear.DearStrategy()


def broken(number):
    """An example of a number, but for 13 and 900."""
    bad = tf.reduce_any(tf.equal(number, tf.constant([13, 900], tf.int64)))
    with tf.control_dependencies([tf.debugging.assert_equal(bad, False)]):
        value = tf.cast(number, tf.float32) / EXAMPLES
    return tf.stack([value, 1 - value]), value**2


def cache_of(prepare=None, **arguments):
    return tfdear.data.DataCache(
        tf.data.Dataset.range(EXAMPLES), prepare, strategy=strategy, memory="1MB", **arguments
    )


def epoch_of(dataset):
    return [rows.tolist() for rows in dataset.as_numpy_iterator()]


def taken():
    """What this process has: bytes of memory, threads, and descriptors."""
    gc.collect()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    counts = [len(os.listdir(f"/proc/self/{name}")) for name in ("task", "fd")]
    return [pages * os.sysconf("SC_PAGE_SIZE"), *counts]


report = {}
cache = cache_of()
report["examples"] = epoch_of(cache.examples(seed=2))
report["batches"] = sum(epoch_of(cache.batches(strategy.world_size, seed=2)), [])
again = cache.batches(100, seed=2)
report["taken"] = []
for epochs in (10, 50):
    for _ in range(epochs):
        epoch_of(again)
    report["taken"].append(taken())
strategy.barrier()

within = cache_of()
within.fill()
strategy.barrier()
dataset = within.batches(BATCH, seed=2, order="node")
report["within"] = [sum(epoch_of(dataset), []) for _ in range(3)]
strategy.barrier()
report["within_statistics"] = within.statistics()
report["progress"] = within.progress()

skipping = cache_of(broken, on_error="skip")
with strategy.scope():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
callback = tfdear.callbacks.DataCacheStatistics(str(directory / "logs"))
history = model.fit(
    skipping.batches(BATCH, shuffle=False), epochs=2, verbose=0, callbacks=[callback]
)
report["history"] = history.history["loss"]
report["weights"] = [np.asarray(weight).tolist() for weight in model.weights]
report["skipped"] = skipping.statistics()["skipped"]
report["events"] = sorted({event.kind for event in strategy.events()})

# The last rank reads on when the scripts of the others have ended.
last = cache_of()
last.fill()
strategy.barrier()
datasets = [last.batches(BATCH) for _ in range(2)]
if strategy.rank == strategy.world_size - 1:
    time.sleep(2)
    for dataset in datasets:
        report["last"] = epoch_of(dataset)
    report["last_statistics"] = last.statistics()
(directory / f"rank_{strategy.rank}.json").write_text(json.dumps(report))
