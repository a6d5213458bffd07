# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a rank sends in a step with a sharded table, beside the least that it must.

Arguments: the network device to watch, where to write, columns, partition, policy.
"""

import json
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear

device, path, columns, partition, policy = sys.argv[1:]
COLUMNS = int(columns)
ROWS, EXAMPLES, WORDS, STEPS = 20_000, 64, 20, 8

keras.mixed_precision.set_global_policy(policy)
strategy = tfdear.DearStrategy()
ranks = strategy.world_size
rng = np.random.default_rng(7)
steps = [(rng.zipf(1.2, size=(EXAMPLES * ranks, WORDS)) % ROWS) for _ in range(STEPS)]

with strategy.scope():
    table = tfdear.layers.ShardedEmbedding(ROWS, COLUMNS, partition=partition)
    table.build()
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(table.trainable_variables)


@tf.function
def step(ids):
    def on_rank(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(table(ids), tf.float32))
        variables = table.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    strategy.run(on_rank, args=(ids,))


def sent() -> int:
    return int(pathlib.Path(f"/sys/class/net/{device}/statistics/tx_bytes").read_text())


def own(ids: np.ndarray, rank: int) -> np.ndarray:
    return np.unique(ids[rank * EXAMPLES : (rank + 1) * EXAMPLES])


def least(ids: np.ndarray) -> int:
    """Vectors and gradients for this rank, and its ids."""
    placement = table.table.placement
    value_bytes = 2 if "16" in policy else 4
    unique = [own(ids, rank) for rank in range(ranks)]
    rank = strategy.rank
    others = [r for r in range(ranks) if r != rank]
    if placement.partition.kind == "column":
        width = placement.shard_shape[1]
        vectors = sum(len(unique[r]) for r in others) * width * value_bytes
        gradients = 4 * len(unique[rank]) * (COLUMNS - width)
    else:
        vectors = sum((unique[r] % ranks == rank).sum() for r in others) * COLUMNS * value_bytes
        gradients = 4 * (unique[rank] % ranks != rank).sum() * COLUMNS
    return int(vectors + gradients + 4 * (ranks - 1) * len(unique[rank]))


# One more than is counted: a step sends vectors of the next one, those of the first count in its
# place.
dataset = tf.data.Dataset.from_tensor_slices(np.concatenate(steps).astype(np.int32))
batches = iter(strategy.experimental_distribute_dataset(dataset.batch(EXAMPLES * ranks)))
step(next(batches))  # Traces it.
strategy.synchronize()
strategy.barrier()
strategy.statistics()
before, bound = sent(), 0
for ids in steps[1:-1]:
    step(next(batches))
    bound += least(ids)
strategy.synchronize()
strategy.barrier()
total = sent() - before
(seen,) = strategy.statistics()["embeddings"].values()
pathlib.Path(path).with_suffix(f".{strategy.rank}").write_text(
    json.dumps({"sent": total, "bound": bound, **seen})
)
step(next(batches))
