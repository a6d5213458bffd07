# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains random models with sharded tables, while ranks are slow by turns.

sharded_stress_job.py runs FIRST COUNT: prints a digest of what each of these runs yields.
sharded_stress_job.py steps COUNT: prints how much memory steps take.
"""

import hashlib
import sys
import time

import keras
import numpy as np

import tfdear

strategy = tfdear.DearStrategy(timeout=60.0)
WORDS = 4


class Slow(keras.callbacks.Callback):
    """One rank, another in each step, comes late."""

    def on_train_batch_begin(self, batch, logs=None):
        del logs
        if batch % strategy.world_size == strategy.rank:
            time.sleep(0.01)


def make(random):
    """A model with a few tables, some of which wait for vectors of others, and dense layers."""
    rows = int(random.integers(2, 40))
    inputs = keras.Input((WORDS,), dtype="int32")
    vectors = []
    for number in range(random.integers(1, 5)):
        ids = inputs % int(random.integers(1, rows + 1))
        if vectors and random.integers(2):
            # Ids that come from vectors, so that this lookup follows another one.
            sums = keras.ops.sum(vectors[-1], -1)
            ids = keras.ops.cast(keras.ops.abs(sums) * 100, "int32") % rows
        layer = tfdear.layers.ShardedEmbedding(
            rows,
            int(random.integers(1, 40)),
            partition=("column", "row")[random.integers(2)],
            exchange=("all_to_all", "all_gather")[int(random.integers(4) == 0)],
            name=f"table_{number}",
        )
        vectors.append(layer(ids))
        if random.integers(3) == 0:
            vectors.append(layer((ids + 1) % rows))
    hidden = keras.layers.Flatten()(keras.layers.Concatenate()(vectors))
    for _ in range(random.integers(1, 4)):
        # Large beside the rows: gradients that keep their lane busy.
        hidden = keras.layers.Dense(256, "tanh")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(
        (keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.01, momentum=0.9))[random.integers(2)],
        "mse",
        steps_per_execution=(1, 1, 3)[random.integers(3)],
    )
    return model


def run(number):
    random = np.random.default_rng(number)
    keras.utils.set_random_seed(number)
    with strategy.scope():
        model = make(random)
    batch = int(random.integers(1, 9))
    ids = random.integers(0, 1000, (6 * batch + int(random.integers(0, batch)), WORDS))
    labels = np.cos(ids[:, :1])
    history = model.fit(ids, labels, batch, epochs=2, verbose=0, callbacks=[Slow()])
    assert np.isfinite(history.history["loss"]).all()
    found = hashlib.sha256()
    for value in [*model.get_weights(), model.evaluate(ids, labels, batch, verbose=0)]:
        found.update(np.ascontiguousarray(value).tobytes())
    strategy.barrier()  # Whoever reads tables needs the others.
    print(f"run {number}: {found.hexdigest()}", flush=True)


def resident():
    with open("/proc/self/status") as status:
        (line,) = [line for line in status if line.startswith("VmRSS:")]
    return int(line.split()[1]) << 10


class Memory(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.resident = []

    def on_train_batch_end(self, batch, logs=None):
        del logs
        if batch % 100 == 99:
            self.resident.append(resident())


def steps(count):
    random = np.random.default_rng(0)
    with strategy.scope():
        inputs = keras.Input((WORDS,), dtype="int32")
        vectors = [
            tfdear.layers.ShardedEmbedding(20_000, 16, partition=partition)(inputs)
            for partition in ("column", "row")
        ]
        hidden = keras.layers.Flatten()(keras.layers.Concatenate()(vectors))
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.Adam(0.01), "mse")
    batch = 8 * strategy.world_size
    # Rows that are rare miss many updates.
    ids = random.zipf(1.2, (count * batch, WORDS)) % 20_000
    memory = Memory()
    model.fit(ids, np.cos(ids[:, :1]), batch, verbose=0, shuffle=False, callbacks=[memory])
    print(f"resident: {memory.resident}", flush=True)


if sys.argv[1] == "runs":
    for number in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3])):
        run(number)
        keras.backend.clear_session()
else:
    steps(int(sys.argv[2]))
strategy.barrier()
