# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Runs a table of training cases in one process and stores what each of them yields.

A process takes many seconds to start, so a job runs all its cases in a row: under `DearStrategy`
as one rank of a job, or with `--plain` without any strategy, which gives the reference.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import pathlib
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

Results = dict[str, object]

# That of Keras before 3.13 fails on TensorFlow by itself, also without a strategy.
MUON_WORKS = tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 13)


class Context:
    """What a case needs to know about the process it runs in."""

    def __init__(self, strategy, directory: pathlib.Path):
        self.strategy = strategy
        self.directory = directory
        self.rank = strategy.rank if strategy else 0
        self.world_size = strategy.world_size if strategy else 1

    def scope(self):
        return self.strategy.scope() if self.strategy else contextlib.nullcontext()

    def distribute(self, dataset):
        return self.strategy.experimental_distribute_dataset(dataset) if self.strategy else dataset

    def wait_for_ranks(self):
        """Call it on all ranks after each has read sharded tables: those of the others, too."""
        if self.strategy:
            self.strategy.barrier()

    def run(self, function, arguments=()):
        return self.strategy.run(function, arguments) if self.strategy else function(*arguments)


class EpochDigests(keras.callbacks.Callback):
    """Remembers a digest of everything that is trained after every epoch."""

    def __init__(self):
        super().__init__()
        self.digests: list[str] = []

    def on_epoch_end(self, epoch, logs=None):
        del epoch, logs
        optimizer = self.model.optimizer.variables if self.model.optimizer else []
        self.digests.append(digest([*self.model.variables, *optimizer]))


def digest(variables) -> str:
    """A digest of the variables' bytes, without what is a rank's own by design.

    That is the seeds of dropout and the gradients that a rank has accumulated and not yet sent.
    """
    content = hashlib.sha256()
    for variable in variables:
        if not any(own in variable.path for own in ("seed_generator", "gradient_accumulator")):
            content.update(np.ascontiguousarray(keras.ops.convert_to_numpy(variable)).tobytes())
    return content.hexdigest()


def fit(model, *data, callbacks=(), **arguments) -> Results:
    """Fits and returns history, digests after every epoch and final weights."""
    digests = EpochDigests()
    arguments.setdefault("verbose", 0)
    history = model.fit(*data, callbacks=[*callbacks, digests], **arguments)
    results: Results = {f"history/{name}": values for name, values in history.history.items()}
    results["digests"] = digests.digests
    return {**results, **weights(model)}


def weights(model) -> Results:
    return {f"weight/{place}": value for place, value in enumerate(model.get_weights())}


def main(cases: dict[str, Callable[[Context], Results]]) -> None:
    """Runs the cases named on the command line (default: all) and writes one file per process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--cases", default="")
    arguments = parser.parse_args()
    strategy = None
    if not arguments.plain:
        import tfdear

        strategy = tfdear.DearStrategy()
    context = Context(strategy, arguments.directory)
    results: dict[str, np.ndarray] = {}
    names = arguments.cases.split(",") if arguments.cases else list(cases)
    for name in names:
        print(f"case {name}", flush=True)
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(1)
        outcome = cases[name](context)
        results.update({f"{name}|{key}": np.asarray(value) for key, value in outcome.items()})
    path = context.directory / ("plain.npz" if strategy is None else f"rank_{context.rank}.npz")
    temporary = path.with_suffix(".writing.npz")
    np.savez(temporary, **results)
    os.replace(temporary, path)


def images(count: int = 81, seed: int = 0):
    """Small pictures of noise with labels that can be learned from them."""
    random = np.random.RandomState(seed)
    x = random.randn(count, 6, 6, 1).astype("float32")
    y = (x.reshape(count, -1)[:, :9].reshape(count, 3, 3).sum(2).argmax(1)).astype("int64")
    return x, y


def batches(x, y, size: int = 16, shuffled: bool = True) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    if shuffled:
        dataset = dataset.shuffle(1000, seed=3)
    return dataset.batch(size)
