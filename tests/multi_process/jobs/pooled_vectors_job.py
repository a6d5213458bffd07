# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains on bags of words whose vectors the ranks that hold them may pool, and where they may not.

Weights of ones forbid it and change no number. What is equal is checked here; what was sent, and of
which words, goes into a file for each rank.

pooled_vectors_job.py DIRECTORY
"""

import json
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear
from tfdear.layers import pooling

ROWS, COLUMNS, WORDS, BATCH = 60, 40, 12, 12
KINDS, POLICIES = ("dense", "ragged", "sparse"), ("float32", "mixed_bfloat16", "mixed_float16")
CASES = {
    f"{kind}_{combiner}": (kind, combiner, POLICIES[(k + c) % 3], (k + c) % 2 == 0)
    for k, kind in enumerate(KINDS)
    for c, combiner in enumerate(pooling.COMBINERS)
}

strategy = tfdear.DearStrategy(timeout=60.0)
rank, ranks = strategy.rank, strategy.world_size
draw = np.random.default_rng(3)  # The same on all ranks.
# Batches of long bags, of bags of which most are empty, of single words, of nothing at all; and one
# of a single example, which leaves other ranks without any.
lengths = np.concatenate(
    [
        draw.integers(6, WORDS + 1, BATCH),
        np.where(draw.integers(0, 4, BATCH) == 0, WORDS, 0),
        np.ones(BATCH, int),
        np.zeros(BATCH, int),
        [WORDS],
    ]
)
words = draw.integers(0, ROWS, lengths.sum())
bags = tf.RaggedTensor.from_row_lengths(words, lengths)
labels = draw.normal(size=len(lengths)).astype("float32")
first = draw.normal(size=(ROWS, COLUMNS)).astype("float32")


def make_layers(suffix):
    def layer(name, **arguments):
        made = tfdear.layers.ShardedEmbedding(
            ROWS,
            COLUMNS,
            embeddings_initializer=lambda shape, dtype=None: tf.constant(first),
            partition="column",
            name=f"{name}_{suffix}",
            **arguments,
        )
        made.build()
        return made

    with strategy.scope():
        layers = {
            name: layer(name, combiner=combiner, dtype=policy, mask_zero=mask_zero)
            for name, (_, combiner, policy, mask_zero) in CASES.items()
        }
        # Its vectors travel with theirs.
        return {**layers, "plain": layer("plain")}


def as_kind(kind, ids):
    if kind == "dense":
        return ids.to_tensor(shape=(None, WORDS))
    if kind == "sparse":  # Out of order.
        sparse = ids.to_sparse()
        return tf.SparseTensor(sparse.indices[::-1], sparse.values[::-1], sparse.dense_shape)
    return ids


def ones_like(ids):
    if isinstance(ids, tf.Tensor):
        return tf.ones_like(ids, tf.float32)
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(ids.indices, tf.ones_like(ids.values, tf.float32), ids.dense_shape)
    return ids.with_values(tf.ones_like(ids.values, tf.float32))


def outputs_of(layers, ids, may_pool):
    outputs = {"plain": layers["plain"](ids).flat_values}
    for name, (kind, *_) in CASES.items():
        given = as_kind(kind, ids)
        outputs[name] = layers[name](given) if may_pool else layers[name](given, ones_like(given))
    return outputs


def train(layers, may_pool):
    """Outputs of all steps, and the tables."""
    with strategy.scope():
        variables = [layer.table for layer in layers.values()]
        optimizer = keras.optimizers.Adam(0.05)
        optimizer.build(variables)

    @tf.function
    def step(ids, labels):
        def on_rank(ids, labels):
            with tf.GradientTape() as tape:
                outputs = outputs_of(layers, ids, may_pool)
                loss = tf.constant(0.0)
                for name, output in outputs.items():
                    weights = 1.0 if name == "plain" else labels[:, tf.newaxis]
                    loss += tf.reduce_sum(tf.sin(tf.cast(output, tf.float32)) * weights)
            optimizer.apply(tape.gradient(loss, variables), variables)
            return outputs, ids

        return strategy.run(on_rank, args=(ids, labels))

    dataset = tf.data.Dataset.from_tensor_slices((bags, labels)).batch(BATCH)
    seen = []
    for batch in strategy.experimental_distribute_dataset(dataset):
        outputs, ids = step(*batch)
        outputs = {name: tf.cast(output, tf.float32).numpy() for name, output in outputs.items()}
        seen.append((outputs, ids.to_list()))
    return seen, {name: layer.get_weights()[0] for name, layer in layers.items()}


def bytes_sent():
    strategy.synchronize()
    strategy.barrier()
    return {
        name: {**table["bytes"], "foreseen_steps": table["foreseen_steps"]}
        for name, table in strategy.statistics()["embeddings"].items()
    }


def count_exchanges():
    return sum(event.kind == "embedding_ids" for event in strategy.events())


def check_training():
    """Of what every step had, and what this rank sent in training where vectors may be pooled."""
    expected, tables = train(make_layers("single"), may_pool=False)
    bytes_sent()
    exchanges = [count_exchanges()]
    layers = make_layers("pooled")
    got, tables_of_pooled = train(layers, may_pool=True)
    sent = bytes_sent()
    exchanges.append(count_exchanges())
    for i, ((outputs, _), (wanted, _)) in enumerate(zip(got, expected, strict=True)):
        for name in wanted:
            np.testing.assert_array_equal(outputs[name], wanted[name], f"step {i}: {name}")
    for name, table in tables.items():
        assert np.any(table != first), name
        np.testing.assert_array_equal(tables_of_pooled[name], table, name)
    begins = layers["plain"].table.placement.column_begins
    return {
        "bags": [ids for _, ids in got],
        "sent": {name: sent[f"{name}_pooled"] for name in CASES},
        "widths": np.diff(begins).tolist(),
        "exchanges": exchanges,
    }


def check_eager():
    """Lookups outside of a function, of which rank 0 has no bags: the sums of one process."""
    layers = make_layers("eager")
    of_rank = [5, 0, 7, 5, 9, 11, 9, 5, 0, 13, 17] if rank else []
    ids = tf.RaggedTensor.from_row_lengths(
        tf.constant(of_rank, tf.int64), tf.constant([6, 0, 5] if rank else [], tf.int64)
    )
    outputs = outputs_of(layers, ids, may_pool=True)
    for name, (kind, combiner, _, mask_zero) in CASES.items():
        dtype = layers[name].compute_dtype

        def look_up(ids, dtype=dtype):
            return tf.gather(tf.cast(first, dtype), ids)

        given = as_kind(kind, ids)
        expected = pooling.pool(look_up, given, None, combiner, leave_out_zero=mask_zero)
        assert outputs[name].dtype == expected.dtype == dtype
        np.testing.assert_array_equal(
            tf.cast(outputs[name], tf.float32), tf.cast(expected, tf.float32), name
        )


def check_bytes():
    """Of bags of 64 words, and of one word each: bytes sent, and what they should be."""
    sent = {}
    for tokens in (64, 1):
        with strategy.scope():
            layer = tfdear.layers.ShardedEmbedding(
                5000, 96, combiner="sum", partition="column", name=f"of_{tokens}"
            )
            layer.build()
        ids = np.random.default_rng(rank).integers(0, 5000, (4 + rank, tokens))
        layer(tf.constant(ids))
        seen = bytes_sent()[f"of_{tokens}"]
        width = layer.table.placement.shard_shape[1]
        sent[tokens] = {
            "vectors": seen["late_vectors"],
            "early": seen["early_vectors"],
            "ids": seen["ids"],
            "unique": len(np.unique(ids)),
            "bags": len(ids),
            "width": width,
        }
    return sent


def check_counts():
    """Of a step in which all ranks have as many bags, ids and words: its counts, and bytes sent."""
    reports = []
    for of_bag in (64, 1):
        with strategy.scope():
            layer = tfdear.layers.ShardedEmbedding(
                5000, 96, combiner="sum", mask_zero=True, partition="column", name=f"as_{of_bag}"
            )
            layer.build()
            optimizer = keras.optimizers.SGD(0.5)
            optimizer.build([layer.table])
        different = 1 + np.random.default_rng(rank).permutation(4999)[:100]
        ids = np.resize(different, (4, of_bag))
        ids[:, 40:] = 0  # In no bag, and a row of the gradient like others.

        @tf.function
        def step(ids, layer=layer, optimizer=optimizer):
            def on_rank(ids):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(layer(ids))
                optimizer.apply(tape.gradient(loss, [layer.table]), [layer.table])

            strategy.run(on_rank, args=(ids,))

        step(tf.constant(ids))
        sent = bytes_sent()[f"as_{of_bag}"]
        reports.append(
            {
                "counts": {
                    "ids": ids.size,
                    "coalesced": len(np.unique(ids)),
                    "bags": len(ids),
                    "tokens": int(np.count_nonzero(ids)),
                },
                "ids": sent["ids"],
                "vectors": sent["late_vectors"] + sent["early_vectors"],
                "gradients": sent["prior"] + sent["delayed"],
            }
        )
    return reports


class Bags(keras.Model):
    def __init__(self, may_pool, name):
        super().__init__()
        self.may_pool = may_pool
        self.table = tfdear.layers.ShardedEmbedding(
            ROWS,
            COLUMNS,
            embeddings_initializer=keras.initializers.RandomNormal(seed=1),
            combiner="mean",
            partition="column",
            name=name,
        )
        self.head = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(0.1))

    def call(self, ids):
        return self.head(self.table(ids) if self.may_pool else self.table(ids, tf.ones_like(ids)))


def check_fit():
    """Weights and history of `fit`, with bags of as many words in all examples."""
    ids = np.random.default_rng(4).integers(0, ROWS, (3 * BATCH + 1, WORDS))
    values = []
    for may_pool in (False, True):
        with strategy.scope():
            model = Bags(may_pool, f"fit_{may_pool}")
            model.compile("adam", "mse")
        history = model.fit(ids, ids.mean(1), batch_size=BATCH, epochs=2, verbose=0)
        values.append(
            [history.history["loss"], *model.get_weights(), model.predict(ids, verbose=0)]
        )
        sent = bytes_sent()[f"fit_{may_pool}"]
    for wanted, got in zip(*values, strict=True):
        np.testing.assert_array_equal(got, wanted)
    return {"early_vectors": sent["early_vectors"], "foreseen_steps": sent["foreseen_steps"]}


report = {"training": check_training(), "bytes": check_bytes(), "fit": check_fit()}
report["counted"] = check_counts()
check_eager()
(pathlib.Path(sys.argv[1]) / f"rank_{rank}.json").write_text(json.dumps(report))
strategy.barrier()
