# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What scripts make of the data sets of caches: which these are, and how they go through them."""

import functools
from collections.abc import Iterator

import tensorflow as tf

from tfdear.data.cached_batches import CachedBatches


def sources_of(dataset: object) -> list[CachedBatches]:
    """The data sets of caches from which a data set is made."""
    return [source for source, _ in epochs_of(dataset)]


def epochs_of(dataset: object) -> list[tuple[CachedBatches, int]]:
    """The same, each with how many of its epochs an iteration goes through.

    Where that has no end, or is not known beforehand, it counts as one.
    """
    found: dict[int, tuple[CachedBatches, int]] = {}
    for source, epochs in _uses_of(dataset, 1):
        _, before = found.get(id(source), (source, 0))
        found[id(source)] = source, before + epochs
    return list(found.values())


def _uses_of(dataset: object, epochs: int) -> Iterator[tuple[CachedBatches, int]]:
    if isinstance(dataset, CachedBatches):
        yield dataset, epochs
    elif isinstance(dataset, tf.data.Dataset):
        if isinstance(dataset, _kinds()["repeat"]):
            epochs *= max(int(tf.get_static_value(dataset._count) or 1), 1)
        for source in made_from(dataset):
            yield from _uses_of(source, epochs)


def has_batches_of(dataset: tf.data.Dataset) -> bool:
    """Whether every element is made from one batch of a cache, in the order of the cache."""
    if isinstance(dataset, CachedBatches):
        return dataset.reading.batched
    inputs = dataset._inputs()
    is_plain = isinstance(dataset, tuple(_kinds().values()))
    if not is_plain or len(inputs) != 1 or not has_batches_of(inputs[0]):
        return False
    (source,) = sources_of(dataset)
    # That of several ranks is put into order before it is read.
    several = source.job is not None and source.job.world_size > 1
    by_argument = getattr(dataset, "_deterministic", None) == "false"
    return several or not (by_argument or dataset.options().deterministic is False)


def repeats(dataset: object) -> bool:
    """Whether an iterator over a data set may go through several epochs of a cache."""
    if not sources_of(dataset):
        return False
    return isinstance(dataset, _kinds()["repeat"]) or any(map(repeats, made_from(dataset)))


def parts_of(dataset: object) -> list[tuple[int, int]]:
    """Of every `shard` behind a cache into how many parts it divides, and which it takes."""
    if not sources_of(dataset):
        return []
    parts = [part for source in made_from(dataset) for part in parts_of(source)]
    if isinstance(dataset, _shard_kind()):
        count, index = map(tf.get_static_value, (dataset._num_shards, dataset._index))
        if count is not None and index is not None:
            parts.append((int(count), int(index)))
    return parts


def made_from(dataset: tf.data.Dataset) -> list[object]:
    """The data sets that one is made from."""
    # One that was put into order has its source there.
    return dataset._inputs() or [getattr(dataset, "_source", None)]


@functools.cache
def _kinds() -> dict[str, type[tf.data.Dataset]]:
    """The classes of data sets that keep their elements as they come, each from one."""
    few = tf.data.Dataset.range(1)
    made = {
        "map": few.map(tf.identity),
        "parallel map": few.map(tf.identity, num_parallel_calls=2),
        "repeat": few.repeat(2),
        "prefetch": few.prefetch(1),
        "with_options": few.with_options(tf.data.Options()),
    }
    return {name: type(dataset) for name, dataset in made.items()}


@functools.cache
def _shard_kind() -> type[tf.data.Dataset]:
    return type(tf.data.Dataset.range(1).shard(1, 0))
