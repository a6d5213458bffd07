# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Reads an observed source in several ways, and stores what was read of it in each epoch."""

import json
import os
import pathlib
import sys

import numpy as np
import tensorflow as tf

import tfdear
from tfdear.benchmarks.observed_files import counts_of

_, report_path, files, cases = sys.argv[1:]
source = pathlib.Path(files)
strategy = tfdear.DearStrategy()
calls = []


def note(record):
    calls.append(len(record))
    return record


def number_of(record):
    record = tf.ensure_shape(tf.numpy_function(note, [record], tf.string), [])
    return tf.io.decode_raw(tf.strings.substr(record, 0, 8), tf.int64)[0]


def cache_of(case):
    names = ("memory", "placement")
    disk = case.get("disk")
    if disk is not None:  # A node's own.
        disk = pathlib.Path(disk, os.environ["TFDEAR_NODE_RANK"])
    return tfdear.data.DataCache(
        tfdear.data.TFRecordFiles(str(source / "*.tfrecord")),
        number_of,
        directory=disk,
        **{name: case[name] for name in names if name in case},
    )


def pipeline_of(case):
    paths = sorted(map(str, source.glob("*.tfrecord")))
    dataset = tf.data.TFRecordDataset(paths).map(number_of)
    if case["pipeline"] == "cache()":
        dataset = dataset.cache()
    return strategy.experimental_distribute_dataset(dataset.batch(50))


def counted():
    """What was read of the source so far; all ranks have read what they would."""
    strategy.barrier()
    counts = counts_of(source)
    strategy.barrier()
    return {"bytes": counts.bytes, "lists": counts.lists}


report = {}
for case in json.loads(cases):
    counts = [counted()]
    cache = None if "pipeline" in case else cache_of(case)
    made = len(calls)  # A cache calls `prepare` to check it; its batches start the preparation.
    dataset = pipeline_of(case) if cache is None else cache.batches(50, seed=1)
    seen, statistics, calls_of_epochs = [], [], []
    for _ in range(3):
        batches = [np.asarray(batch).tolist() for batch in dataset]
        counts.append(counted())
        seen.append(sum(batches, []))
        calls_of_epochs.append(len(calls) - made)
        made = len(calls)
        statistics.append(None if cache is None else cache.statistics())
    if cache is not None:
        cache.close()
    report[case["name"]] = {
        "counts": counts,
        "seen": seen,
        "calls": calls_of_epochs,
        "statistics": statistics,
    }
pathlib.Path(f"{report_path}.{strategy.rank}").write_text(json.dumps(report))
