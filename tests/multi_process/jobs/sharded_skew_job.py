# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Counts the bytes that ranks send for sharded tables, for words that occur in several ways.

sharded_skew_job.py OUT
"""

import json
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear
from tfdear.base import names

ROWS, WIDTH, WORDS, STEPS = 20_000, 512, 4096, 3

strategy = tfdear.DearStrategy()
random = np.random.default_rng(7)  # The same on all ranks.


def zipf(shape):
    """The most frequent word is 0, the next one 1 and so on."""
    frequencies = np.arange(1, ROWS + 1) ** -1.1
    return random.choice(ROWS, shape, p=frequencies / frequencies.sum())


SHAPE = (STEPS, strategy.world_size, WORDS)
ORDERS = {
    "by frequency": zipf(SHAPE),
    # Any other order: what a word's number is has nothing to do with how often it occurs.
    "alphabetical": random.permutation(ROWS)[zipf(SHAPE)],
    "distinct": np.stack([random.permutation(ROWS)[: SHAPE[1] * WORDS] for _ in range(STEPS)]),
    "one": np.full(SHAPE, 4),
}


def bytes_sent():
    strategy.synchronize()
    strategy.barrier()
    engine = strategy._job.engine
    lanes = (names.Lane.EMBEDDINGS, names.Lane.EMBEDDING_ROWS)
    return sum(engine.counters(lane)["bytes_sent"] for lane in lanes)


def count(partition, ids):
    with strategy.scope():
        layer = tfdear.layers.ShardedEmbedding(ROWS, WIDTH, partition=partition)
        layer.build(None)
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(layer.trainable_variables)

    @tf.function
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(ids))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)

    before = bytes_sent()
    for each in ids.reshape(SHAPE):
        strategy.run(step, (tf.constant(each[strategy.rank], tf.int32),))
    return bytes_sent() - before


sent = {
    f"{partition} {name}": count(partition, ids)
    for partition in ("column", "row")
    for name, ids in ORDERS.items()
}
pathlib.Path(sys.argv[1]).with_suffix(f".{strategy.rank}").write_text(json.dumps(sent))
