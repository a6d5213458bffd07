# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Reads from a cache while the rank that prepares half of it is stopped or killed."""

import os
import signal
import threading
import time

import tensorflow as tf

import tfdear

strategy = tfdear.DearStrategy(timeout=60)


def slowly(number):
    time.sleep(0.01)
    return number


cache = tfdear.data.DataCache(
    tf.data.Dataset.range(4000),
    lambda number: tf.ensure_shape(tf.numpy_function(slowly, [number], tf.int64), []),
    memory="1MB",
    threads=1,
)
if strategy.rank == 1:
    end = getattr(signal, os.environ["CASE_SIGNAL"])
    after = float(os.environ["CASE_AFTER"])
    threading.Timer(after, os.kill, (os.getpid(), end)).start()
for _ in cache.batches(16):  # Takes twenty seconds.
    pass
print("through")
