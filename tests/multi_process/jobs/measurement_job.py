# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A short training with everything that measures: statistics, callback, profiler, timeline."""

from __future__ import annotations

import ctypes
import json
import pathlib
import platform
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear
from tfdear.job import recorder as timeline_recorder
from tfdear.measure import clock

DIRECTORY = pathlib.Path(sys.argv[1])

strategy = tfdear.DearStrategy(fusion=tfdear.fusion.FixedSize(256 << 10))
with strategy.scope():
    hidden = [keras.layers.Dense(256, activation="tanh") for _ in range(3)]
    model = keras.Sequential([keras.layers.Input((256,)), *hidden, keras.layers.Dense(2)])
    model.compile(keras.optimizers.Adam(1e-3), "mse")
x = np.random.RandomState(0).randn(640, 256).astype("float32")
model.fit(x, x[:, :2], batch_size=64, verbose=0)
strategy.synchronize()

# Each of these reads the record from a place of its own.
first = strategy.statistics()
events = strategy.events()
callback = tfdear.callbacks.StepStatistics(DIRECTORY / "logs", every=4)
if strategy.is_chief:
    tf.profiler.experimental.start(str(DIRECTORY / "profile"))
model.fit(x, x[:, :2], batch_size=64, epochs=2, verbose=0, callbacks=[callback])
strategy.synchronize()
if strategy.is_chief:
    tf.profiler.experimental.stop()
second = strategy.statistics()


# As between two machines, though all ranks read one clock here.
offset = clock.measure(strategy.rank, strategy.extended.gather_lists, timeline_recorder.now_micros)


@tf.function
def inner():
    return tf.add_n([tf.reduce_sum(variable.value) for variable in model.trainable_variables])


@tf.function
def outer():
    return inner() * 2.0


def slices_of_threads() -> dict[str, list[int]]:
    """By the name that a thread shows: nanoseconds that it runs at a time, as sched(7) has them."""
    number = {"x86_64": 315, "aarch64": 275}[platform.machine()]  # Of sched_getattr.
    slices: dict[str, list[int]] = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        attributes = (ctypes.c_uint64 * 7)()
        size = ctypes.sizeof(attributes)
        try:
            name = (task / "comm").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has ended.
        if ctypes.CDLL(None).syscall(number, int(task.name), attributes, size, 0) == 0:
            slices.setdefault(name.strip(), []).append(attributes[3])
    return slices


outer_ops = [op.type for op in outer.get_concrete_function().graph.get_operations()]
report = {
    "first": first,
    "second": second,
    "steps in events": sum(event.kind == "step" for event in events),
    "clock offset": offset.microseconds,
    "clock error": offset.error,
    "slices": slices_of_threads(),
    "awaits outside the inner function": outer_ops.count("DearAwait"),
}
(DIRECTORY / f"report_{strategy.rank}.json").write_text(json.dumps(report))
