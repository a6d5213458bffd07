# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Steps of models that sleep, under tfdear: their tables exchanged in every way."""

import functools

import drawn_ids
import keras
import numpy as np
import sleeping_model

import tfdear

_models: dict = {}
_dense: dict = {}


@functools.cache
def strategy() -> tfdear.DearStrategy:
    """The strategy, with the options of this job's environment."""
    return tfdear.DearStrategy()


def build(name: str, exchange: str, layers: list[dict], tables: list[dict]) -> None:
    """Makes a model by the name of a method.

    Args:
        name: Of the method.
        exchange: Of all tables: "all_reduce" (of whole tables), "all_gather" or "all_to_all".
        layers: In the order of the forward pass: seconds `forward` and `backward`, and `sizes`, the
            numbers of elements of the layer's weights.
        tables: Of each its `rows`, `columns`, and the `layer` that needs its vectors.
    """
    with strategy().scope():
        made = [_layer(number, layer) for number, layer in enumerate(layers)]
        lookups = {}
        for table in tables:
            place, rows, columns = table["layer"], table["rows"], table["columns"]
            if exchange == "all_reduce":
                seconds = layers[place]["forward"], layers[place]["backward"]
                sizes = [*layers[place]["sizes"], rows * columns]
                made[place] = sleeping_model.SleepingLayer(*seconds, sizes)
            else:
                lookups[place] = tfdear.layers.ShardedEmbedding(
                    rows, columns, embeddings_initializer="zeros", exchange=exchange
                )
        model = sleeping_model.SleepingModel(made, lookups)
        model.compile(keras.optimizers.SGD(0.5), sleeping_model.mean_output)
    _models[name] = model, len(lookups)


def _layer(number: int, layer: dict) -> sleeping_model.SleepingLayer:
    """A layer, which all models share."""
    if number not in _dense:
        _dense[number] = sleeping_model.SleepingLayer(
            layer["forward"], layer["backward"], layer["sizes"]
        )
    return _dense[number]


def run(name: str, ids: list[dict], steps: int) -> list[float]:
    """Seconds of each of a method's steps.

    Args:
        name: As it was built.
        ids: Of each table the arguments of a function of `drawn_ids`, and its name as `function`.
        steps: Steps that are timed.
    """
    model, count = _models[name]
    ranks = strategy().world_size
    batches = [_ids(ranks, number, **arguments) for number, arguments in enumerate(ids[:count])]
    dataset = sleeping_model.endless(ranks, batches)
    return sleeping_model.seconds_of_steps(model, dataset, steps, strategy().synchronize)


@functools.lru_cache(maxsize=8)
def _ids(ranks: int, seed: int, function: str, **counts: int) -> np.ndarray:
    return getattr(drawn_ids, function)(ranks=ranks, seed=seed, **counts)
