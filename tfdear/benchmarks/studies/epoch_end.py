# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How long `fit` takes after the last batch of an epoch: its time over the time to that batch.

TensorFlow may make it wait for tf.data's autotuner (docs/data.md). Trains four convolutions on one
thread, in one process, once plainly and once under DearStrategy. Prints a table; with --json FILE,
writes its numbers.
"""

import argparse
import contextlib
import time

import keras
import numpy as np
import tensorflow as tf

import tfdear
from tfdear.benchmarks import report


def build(scope, channels: int, size: int) -> keras.Model:
    """A compiled network of four convolutions."""
    with scope:
        layers = [keras.layers.Conv2D(channels, 3, padding="same") for _ in range(4)]
        pooled = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input([size, size, 3]), *layers, *pooled])
        model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model


class LastBatch(keras.callbacks.Callback):
    """When the latest batch ended."""

    def on_train_batch_end(self, batch, logs=None):
        del batch, logs
        self.time = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3, help="calls of `fit` each (default 3)")
    parser.add_argument("--seconds", type=float, default=14, help="of an epoch (default 14)")
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--size", type=int, default=64, help="image size (default 64)")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--json", help="file to write the numbers to")
    arguments = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = tfdear.DearStrategy()
    scopes = {"plain Keras": contextlib.nullcontext(), "DearStrategy": strategy.scope()}
    models = {
        name: build(scope, arguments.channels, arguments.size) for name, scope in scopes.items()
    }
    shape = [arguments.batch_size, arguments.size, arguments.size, 3]
    image, label = np.zeros(shape[1:], "float32"), np.zeros([1], "float32")

    def data(steps):
        dataset = tf.data.Dataset.from_tensors((image, label)).repeat(steps * shape[0])
        dataset = dataset.map(lambda x, y: (x + 1, y), num_parallel_calls=tf.data.AUTOTUNE)
        return dataset.batch(shape[0]).prefetch(tf.data.AUTOTUNE)

    last = LastBatch()
    rows = []
    for model in models.values():
        model.fit(data(1), verbose=0)  # Traces the step.
    start = time.perf_counter()
    models["plain Keras"].fit(data(4), verbose=0, callbacks=[last])
    steps = max(2, round(4 * arguments.seconds / (last.time - start)))
    print(f"{steps} steps per epoch; seconds to the last batch, of `fit`, and the second per first")
    for _ in range(arguments.epochs):
        for name, model in models.items():
            start = time.perf_counter()
            model.fit(data(steps), verbose=0, callbacks=[last])
            to_last, whole = last.time - start, time.perf_counter() - start
            rows.append({"name": name, "last_batch": to_last, "fit": whole})
            print(f"{name:13}{to_last:8.2f}{whole:8.2f}{whole / to_last:8.3f}", flush=True)
    if arguments.json:
        report.write(arguments.json, {"steps": steps, "rows": rows})


if __name__ == "__main__":
    main()
