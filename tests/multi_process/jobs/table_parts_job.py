# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a rank sends of each part of a step with tables, and what it should send.

table_parts_job.py DIRECTORY
"""

import json
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfdear

ROWS, WORDS, STEPS = 300, 7, 6

strategy = tfdear.DearStrategy()
rank, ranks = strategy.rank, strategy.world_size
draw = np.random.default_rng(5)  # The same on all ranks.
words = (draw.zipf(1.3, (STEPS, ranks, 4, WORDS)) % ROWS).astype(np.int32)

with strategy.scope():
    tables = {
        "columns": tfdear.layers.ShardedEmbedding(ROWS, 37, partition="column", name="columns"),
        "rows": tfdear.layers.ShardedEmbedding(ROWS, 5, partition="row", name="rows"),
        "twice": tfdear.layers.ShardedEmbedding(ROWS, 19, partition="column", name="twice"),
        "whole": tfdear.layers.ShardedEmbedding(ROWS, 11, exchange="all_gather", name="whole"),
    }
    for table in tables.values():
        table.build()
    variables = [table.table for table in tables.values()]
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(variables)
ids_of = {
    "columns": [lambda ids: ids],
    "rows": [lambda ids: ids * 7 % ROWS],
    "twice": [lambda ids: ids, lambda ids: ids * 3 % ROWS],
    "whole": [lambda ids: ids],
}


@tf.function
def step(ids):
    def on_rank(ids):
        with tf.GradientTape() as tape:
            loss = sum(
                tf.reduce_sum(tables[name](derive(ids)))
                for name, derived in ids_of.items()
                for derive in derived
            )
        optimizer.apply(tape.gradient(loss, variables), variables)

    strategy.run(on_rank, args=(ids,))


def expected(name, looks_ahead):
    """Bytes by part, from the ids of all ranks and where the table's parts are."""
    placement = tables[name].table.placement
    columns = placement.shape[1]
    width = placement.shard_shape[1]
    by_row = placement.partition.kind == "row"
    sent = dict.fromkeys(("ids", "early_vectors", "late_vectors", "prior", "delayed"), 0)
    lookups = [
        [[set(derive(words[i, r]).ravel().tolist()) for r in range(ranks)] for i in range(STEPS)]
        for derive in ids_of[name]
    ]
    one_lookup = len(lookups) == 1
    others = [r for r in range(ranks) if r != rank]

    def held(some):
        return [word for word in some if not by_row or word % ranks == rank]

    for i in range(STEPS):
        foreseen = looks_ahead and one_lookup and i > 0
        for unique in lookups:
            sent["ids"] += 4 * (ranks - 1) * len(unique[i][rank])
            now = set().union(*unique[i - 1]) if foreseen else None
            for r in others:
                early = unique[i][r] - now if foreseen else set()
                sent["early_vectors"] += 4 * width * len(held(early))
                sent["late_vectors"] += 4 * width * len(held(unique[i][r] - early))
        own = set().union(*(unique[i][rank] for unique in lookups))
        split = looks_ahead and one_lookup and i + 1 < STEPS
        following = set().union(*lookups[0][i + 1]) if split else own
        if by_row:
            away = {word for word in own if word % ranks != rank}
            bytes_of_row = 4 * columns
        else:
            away = own
            # Where all ranks know the ids, they are not told again.
            bytes_of_row = 4 * (columns - width) + (0 if one_lookup else 4 * (ranks - 1))
        sent["prior"] += bytes_of_row * len(away & following)
        sent["delayed"] += bytes_of_row * len(away - following)
    return sent


dataset = tf.data.Dataset.from_tensor_slices(words.reshape(-1, WORDS)).batch(4 * ranks)
strategy.statistics()
begin = time.monotonic()
for batch in strategy.experimental_distribute_dataset(dataset):
    step(batch)
strategy.synchronize()
strategy.barrier()
statistics = strategy.statistics()
elapsed = time.monotonic() - begin
seen = statistics["embeddings"]
looks_ahead = seen["columns"]["hint"] == "next batch"
events = [event.kind for event in strategy.events()]
report = {
    "bytes": {name: table["bytes"] for name, table in seen.items()},
    "expected": {name: expected(name, looks_ahead) for name in tables if name != "whole"},
    "gathered": sum((ranks - 1) * len(np.unique(step[rank])) * (4 * 11 + 8) for step in words),
    "looks_ahead": looks_ahead,
    "stall": statistics["stall"],
    "stalls": [step["stall"] for step in statistics["per_step"]],
    "times": [step["time"] for step in statistics["per_step"]],
    "elapsed": elapsed,
    "waits": events.count("wait"),
    "splits": events.count("embedding_split"),
}
(pathlib.Path(sys.argv[1]) / f"rank_{rank}.json").write_text(json.dumps(report))
