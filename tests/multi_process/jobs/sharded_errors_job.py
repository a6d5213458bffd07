# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Does something wrong with sharded tables, on one rank or on all.

sharded_errors_job.py KIND [ID]
"""

import sys

import case_table
import keras
import numpy as np

import tfdear

ROWS, WIDTH, WORDS = 20, 6, 3
KIND = sys.argv[1]
strategy = tfdear.DearStrategy(timeout=20.0, heartbeat=5.0)


class Total(keras.layers.Layer):
    """A number for every example: no other layer's shape depends on the table's."""

    def call(self, vectors):
        return keras.ops.sum(vectors, axis=tuple(range(1, len(vectors.shape))))[:, None]


def model(optimizer="adam", rows=ROWS, width=WIDTH, dtype="int32", **arguments):
    table = tfdear.layers.ShardedEmbedding(rows, width, name="words", **arguments)
    layers = [keras.Input((WORDS,), dtype=dtype), table, Total(), keras.layers.Dense(1)]
    built = keras.Sequential(layers)
    built.compile(optimizer, "mse")
    return built


def train(built, rows=ROWS):
    ids = np.arange(12 * WORDS).reshape(12, WORDS) % rows
    built.fit(ids, np.zeros((12, 1)), batch_size=6, shuffle=False, verbose=0)


def bad_id(method, **arguments):
    # The last example of a batch is the last rank's.
    dtype = "float32" if sys.argv[2] == "nan" else "int32"
    ids = (np.arange(12 * WORDS).reshape(12, WORDS) % ROWS).astype(dtype)
    ids[11, 1] = float(sys.argv[2])
    with strategy.scope():
        built = model(dtype=dtype, **arguments)
    if method == "predict":
        built.predict(ids, batch_size=6, verbose=0)
    else:
        getattr(built, method)(ids, np.zeros((12, 1)), batch_size=6, verbose=0)


def other_shape(rows=0, width=0):
    with strategy.scope():
        built = model(rows=ROWS + rows * strategy.rank, width=WIDTH + width * strategy.rank)
    train(built)


def other_order():
    names = ("users", "items") if strategy.rank == 0 else ("items", "users")
    with strategy.scope():
        inputs = keras.Input((WORDS,), dtype="int32")
        rows = {"users": ROWS, "items": ROWS + 10}
        vectors = [
            tfdear.layers.ShardedEmbedding(rows[name], WIDTH, name=name)(inputs) for name in names
        ]
        scores = keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Add()(vectors)))
        built = keras.Model(inputs, scores)
        built.compile("sgd", "mse")
    train(built)


def refusals():
    """What cannot be done row by row; prints why, and that the next model trains."""
    optimizers = {
        "Adafactor": keras.optimizers.Adafactor,
        "Lamb": keras.optimizers.Lamb,
        "UnitNorm": lambda: "adam",
    }
    if case_table.MUON_WORKS:
        # By default it leaves embeddings to Adam.
        optimizers["Muon"] = lambda: keras.optimizers.Muon(exclude_embeddings=False)
    arguments = {
        "Lamb": {"updates": "touched"},
        "UnitNorm": {"embeddings_constraint": keras.constraints.UnitNorm(axis=1)},
    }
    for name, make in optimizers.items():
        with strategy.scope():
            built = model(make(), **arguments.get(name, {}))
        try:
            train(built)
        except ValueError as error:
            print(f"refused {name}: {' '.join(str(error).split())}", flush=True)
    for optimizer in ("adam", *(["muon"] if case_table.MUON_WORKS else [])):
        with strategy.scope():
            built = model(optimizer)
        train(built)


KINDS = {
    "fit": lambda: bad_id("fit"),
    "evaluate": lambda: bad_id("evaluate"),
    "predict": lambda: bad_id("predict"),
    "pooled": lambda: bad_id("fit", combiner="mean", partition="column"),
    "reversible": lambda: bad_id("fit", reversible=True),
    "rows": lambda: other_shape(rows=4),
    "columns": lambda: other_shape(width=2),
    "order": other_order,
    "refusals": refusals,
}
KINDS[KIND]()
print("came to the end", flush=True)
