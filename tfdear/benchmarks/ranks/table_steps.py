# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Steps of models that sleep, under tfdear: their tables exchanged in every way."""

import contextlib
import functools
import itertools
from collections.abc import Iterator
from unittest import mock

import drawn_ids  # type: ignore[import-not-found]
import keras
import numpy as np
import sleeping_model  # type: ignore[import-not-found]

import tfdear
from tfdear.base import names

_EXCHANGES = {
    *(kind.name for kind in names.STEP_KINDS),
    *("embedding_ids", "embedding_vectors", "embedding_prior", "embedding_delayed"),
}
_models: dict = {}
_dense: dict = {}
_late: set[str] = set()
# Of the servers of each model; all ranks make their models in the same order.
_ports = itertools.count(7300)


@functools.cache
def strategy() -> tfdear.DearStrategy:
    """The strategy, with the options of this job's environment."""
    return tfdear.DearStrategy()


def build(
    name: str, exchange: str, layers: list[dict], tables: list[dict], addresses: list[str]
) -> None:
    """Makes a model by the name of a method.

    Args:
        name: Of the method.
        exchange: Of all tables: "all_reduce" (of whole tables), "all_gather", "all_to_all",
            "servers" or "servers N" (rows on as many servers, by default one for each rank),
            "slices" (all gradients in slices to servers) or "blocks" (sums of those blocks of a
            table that are not zero). "all_to_all late": no vectors are looked up early.
        layers: In the order of the forward pass: seconds `forward` and `backward`, and `sizes`, the
            numbers of elements of the layer's weights.
        tables: Of each its `rows`, `columns`, and the `layer` that needs its vectors.
        addresses: Of the ranks.
    """
    kind, _, number = exchange.partition(" ")
    with strategy().scope():
        if kind in ("all_reduce", "slices"):
            for table in tables:
                layers[table["layer"]]["sizes"].append(table["rows"] * table["columns"])
        if kind == "slices":
            made, parts = _sliced(layers, addresses)
        else:
            holding = {table["layer"] for table in tables} if kind == "all_reduce" else ()
            made = [
                _layer(place, layer, place not in holding) for place, layer in enumerate(layers)
            ]
            parts = []
        lookups = {}
        if kind in ("all_gather", "all_to_all"):
            lookups = {table["layer"]: _sharded(table, kind) for table in tables}
        elif kind == "servers":
            parts = _served(tables, addresses, int(number or len(addresses)))
        elif kind == "blocks":
            parts = _summed(tables, addresses)
        if kind in ("servers", "blocks"):
            lookups = {table["layer"]: part for table, part in zip(tables, parts, strict=True)}
        model = sleeping_model.SleepingModel(made, lookups)
        model.compile(keras.optimizers.SGD(0.5), sleeping_model.mean_output)
    _models[name] = model, len(lookups), parts
    if number == "late":
        _late.add(name)


@contextlib.contextmanager
def _early_vectors(wanted: bool) -> Iterator[None]:
    """Functions that are traced within it look vectors up early, or not: no option does that."""
    if wanted:
        yield
        return
    lookups = "tfdear.gradients.lookup_group.LookupGroup"
    with mock.patch(f"{lookups}.look_up_early", lambda *_: None):
        yield


def _layer(number: int, layer: dict, shared: bool) -> sleeping_model.SleepingLayer:
    """A layer; if it holds no table, all models share it."""
    if shared and number in _dense:
        return _dense[number]
    made = sleeping_model.SleepingLayer(layer["forward"], layer["backward"], layer["sizes"])
    if shared:
        _dense[number] = made
    return made


def _sharded(table: dict, exchange: str) -> keras.layers.Layer:
    return tfdear.layers.ShardedEmbedding(
        table["rows"], table["columns"], embeddings_initializer="zeros", exchange=exchange
    )


def _served(tables: list[dict], addresses: list[str], servers: int) -> list:
    import served_tables  # type: ignore[import-not-found]

    shapes = [(table["rows"], table["columns"]) for table in tables]
    started = served_tables.Servers(
        strategy().rank, addresses, min(servers, len(addresses)), next(_ports), shapes
    )
    return [started.table(number) for number in range(len(tables))]


def _summed(tables: list[dict], addresses: list[str]) -> list:
    import block_sums  # type: ignore[import-not-found]

    sums = block_sums.BlockSums(strategy().rank, addresses)
    return [block_sums.SummedTable(sums, table["rows"], table["columns"]) for table in tables]


def _sliced(layers: list[dict], addresses: list[str]) -> tuple[list, list]:
    import sliced_layers  # type: ignore[import-not-found]

    slices = sliced_layers.Slices(strategy().rank, addresses)
    made = [
        sliced_layers.SlicedLayer(
            slices, place, layer["forward"], layer["backward"], sum(layer["sizes"])
        )
        for place, layer in enumerate(layers)
    ]
    return made, [slices]


def run(name: str, ids: list[dict], steps: int) -> dict:
    """Makes steps of a method.

    Args:
        name: As it was built.
        ids: Of each table the arguments of a function of `drawn_ids`, and its name as `function`.
        steps: Steps that are timed.

    Returns:
        `seconds` of each step, after the first ones, and of all steps the seconds of each of their
        `exchanges`, by kind.
    """
    model, count, parts = _models[name]
    ranks = strategy().world_size
    batches = [_ids(ranks, number, **arguments) for number, arguments in enumerate(ids[:count])]
    dataset = sleeping_model.endless(ranks, batches)
    exchanges: dict[str, list[float]] = {}
    strategy().events()

    def finish() -> None:
        for number, part in enumerate(parts):
            exchanges.update((f"{kind} {number}", times) for kind, times in part.finish().items())
        strategy().synchronize()

    with _early_vectors(name not in _late):
        seconds = sleeping_model.seconds_of_steps(model, dataset, steps, finish)
    for event in strategy().events():
        if event.kind in _EXCHANGES:
            exchanges.setdefault(event.kind, []).append(event.end - event.begin)
    return {"seconds": seconds, "exchanges": exchanges}


@functools.lru_cache(maxsize=8)
def _ids(ranks: int, seed: int, function: str, **counts: int) -> np.ndarray:
    return getattr(drawn_ids, function)(ranks=ranks, seed=seed, **counts)
