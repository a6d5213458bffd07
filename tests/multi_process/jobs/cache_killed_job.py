# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Fills a cache and its directory slowly, and stores what this rank saw and whence it came."""

import json
import pathlib
import sys
import time

import numpy as np
import tensorflow as tf

import tfdear
from tfdear.data import disk_writer

source, disk, report, seconds = sys.argv[1:]
disk_writer._INDEX_EVERY = 20_000
strategy = tfdear.DearStrategy(timeout=60)


def slowly(record):
    time.sleep(float(seconds))
    return record


def example_of(record):
    text = tf.ensure_shape(tf.numpy_function(slowly, [record], tf.string), [])
    return tf.strings.to_number(tf.strings.substr(text, 0, 6), tf.int64), text


cache = tfdear.data.DataCache(
    tfdear.data.TFRecordFiles(source), example_of, directory=disk, threads=1, version="1"
)
print("begun", flush=True)
seen = []
for _ in range(2):
    # Strings are no rows of a fixed size: single examples, of which this rank has its own.
    for number, text in cache.examples(seed=3):
        content = text.numpy()
        assert content == content[:6] * (len(content) // 6), number
        seen.append(int(np.asarray(number)))
pathlib.Path(f"{report}.{strategy.rank}").write_text(
    json.dumps({"seen": seen, "statistics": cache.statistics()})
)
