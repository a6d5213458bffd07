# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The cost of a DearStrategy in a process that trains alone: step time over that of plain Keras.

Both models train in one process, one thread, in alternating epochs, so that a change of the
machine's speed affects both. Prints a table; with --json FILE, writes its numbers.
"""

import argparse
import contextlib
import platform
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import tfdear
from tfdear.benchmarks import report


def build(scope, size: int) -> keras.Model:
    """A compiled ResNet-50 for `size` x `size` images."""
    with scope:
        model = keras.applications.ResNet50(
            weights=None, classes=10, input_shape=(size, size, 3), classifier_activation=None
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=9, help="counted epochs of each (default 9)")
    parser.add_argument("--steps", type=int, default=8, help="steps per epoch (default 8)")
    parser.add_argument("--size", type=int, default=64, help="image size (default 64)")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--json", help="file to write the numbers to")
    arguments = parser.parse_args()

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    strategy = tfdear.DearStrategy()
    models = {
        "plain Keras": build(contextlib.nullcontext(), arguments.size),
        "DearStrategy": build(strategy.scope(), arguments.size),
    }
    random = np.random.RandomState(0)
    count = arguments.steps * arguments.batch_size
    images = random.rand(count, arguments.size, arguments.size, 3).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((images, random.randint(0, 10, count)))
    dataset = dataset.batch(arguments.batch_size).cache()

    seconds: dict[str, list[float]] = {name: [] for name in models}
    for epoch in range(arguments.epochs + 1):
        order = list(models)[:: 1 if epoch % 2 else -1]
        for name in order:
            start = time.perf_counter()
            models[name].fit(dataset, epochs=1, verbose=0)
            if epoch > 0:  # The first epoch traces.
                seconds[name].append((time.perf_counter() - start) / arguments.steps)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratio = medians["DearStrategy"] / medians["plain Keras"]
    print(f"ResNet-50, {arguments.size}x{arguments.size}, batch {arguments.batch_size}, one thread")
    print(f"{'':14s} {'ms/step':>9s} {'min':>9s} {'max':>9s}")
    for name, times in seconds.items():
        row = (1e3 * value for value in (medians[name], min(times), max(times)))
        print(f"{name:14s} " + " ".join(f"{value:9.1f}" for value in row))
    print(f"ratio of medians: {ratio:.3f} (limit 1.05)")
    if arguments.json:
        document = {"seconds": seconds, "ratio": ratio, "machine": platform.processor()}
        report.write(arguments.json, document)


if __name__ == "__main__":
    main()
