# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A process that reads input pipelines: a `DataCache`, and TensorFlow's own."""

import gc
import glob
import os
import time
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf
import with_tfdear  # type: ignore[import-not-found]

import tfdear

_HEAD = 8  # Bytes of an example that have its number.
_BATCHES_OF_SPLIT = 8
_Pipeline = Callable[[], Iterable]
prepare = with_tfdear.prepare
_strategy: list = []
_pipelines: dict[str, _Pipeline] = {}
_caches: dict[str, tfdear.data.DataCache] = {}


def start(rank: int, addresses: list[str], hostnames: list[str], prepared: dict) -> str:
    """As of `with_tfdear`; whoever is to be a rank of a job calls `join` then."""
    with_tfdear.start(rank, addresses, hostnames, prepared)
    return f"tfdear {tfdear.__version__}, TensorFlow {tf.__version__}"


def join() -> None:
    """Makes this process a rank of the job."""
    _strategy.append(tfdear.DearStrategy())


def _share() -> tuple[int, int]:
    """This rank, and how many there are."""
    return (_strategy[0].rank, _strategy[0].world_size) if _strategy else (0, 1)


def _example_of(nbytes: int) -> Callable:
    """Makes of a number, or of several, examples that begin with it and do not compress."""
    pattern = tf.constant(
        np.random.default_rng(0).integers(256, size=nbytes - _HEAD, dtype=np.uint8)
    )

    def make(number: tf.Tensor) -> tf.Tensor:
        key = tf.cast(number % 251, tf.uint8)[..., tf.newaxis]
        content = tf.bitwise.bitwise_xor(pattern, key)
        return tf.concat([tf.bitcast(tf.cast(number, tf.int64), tf.uint8), content], -1)

    return make


def _parse(nbytes: int) -> Callable:
    return lambda record: tf.ensure_shape(tf.io.decode_raw(record, tf.uint8), [nbytes])


def write_records(folder: str, files: int, count: int, nbytes: int) -> None:
    """Rank 0: writes numbered records into TFRecord files."""
    if _share()[0]:
        return
    make = _example_of(nbytes)
    for file in range(files):
        with tf.io.TFRecordWriter(os.path.join(folder, f"{file:03d}.tfrecord")) as writer:
            for number in range(file * count // files, (file + 1) * count // files):
                writer.write(make(tf.constant(number)).numpy().tobytes())


def open_cache(
    name: str,
    nbytes: int,
    batch_size: int,
    count: int = 0,
    files: str = "",
    placement: str = "sharded",
) -> float:
    """Opens a `DataCache` of numbered examples, or of records in files; returns the seconds.

    `batch_size` is that of a rank.
    """
    begin = time.monotonic()
    if files:
        source, make = tfdear.data.TFRecordFiles(files), _parse(nbytes)
    else:
        source, make = tf.data.Dataset.range(count), _example_of(nbytes)
    cache = tfdear.data.DataCache(source, make, placement=placement)
    batches = cache.batches(batch_size * _share()[1], seed=1)
    _caches[name], _pipelines[name] = cache, lambda: batches
    return time.monotonic() - begin


def open_examples(name: str, cache: str, batch_size: int) -> None:
    """Opens the single examples of an open cache, in batches."""
    dataset = _caches[cache].examples(seed=1).batch(batch_size)
    _pipelines[name] = lambda: dataset


def open_pipeline(
    name: str,
    kind: str,
    nbytes: int,
    batch_size: int,
    count: int = 0,
    files: str = "",
) -> float:
    """Opens a pipeline of TensorFlow's own; as `open_cache`."""
    begin = time.monotonic()
    if files:
        dataset = tf.data.TFRecordDataset(sorted(glob.glob(files))).map(_parse(nbytes))
    else:
        dataset = tf.data.Dataset.range(count).map(_example_of(nbytes))
    if kind == "from_generator":
        examples = [example.numpy() for example in dataset]
        spec = tf.TensorSpec([nbytes], tf.uint8)
        dataset = tf.data.Dataset.from_generator(lambda: examples, output_signature=spec)
    elif kind == "cache().shuffle":
        dataset = dataset.cache().shuffle(count)
    elif kind == "cache()":
        dataset = dataset.cache()
    if files:
        # Batches of all ranks, as under a strategy: each reads all of it, and takes its rows.
        rank, world_size = _share()
        own = slice(rank * batch_size, (rank + 1) * batch_size)
        dataset = dataset.batch(batch_size * world_size).map(lambda batch: batch[own]).prefetch(2)
    else:
        dataset = dataset.batch(batch_size)
    _pipelines[name] = lambda: dataset
    return time.monotonic() - begin


def open_service(name: str, address: str, count: int, nbytes: int, batch_size: int) -> None:
    """Opens what tf.data service's workers make of numbers; every epoch is a job of its own.

    Workers get several batches' numbers at a time, and make each batch by one operation, which
    takes less than a cache would. Batches go to whoever asks first.
    """
    block = _BATCHES_OF_SPLIT * batch_size
    epochs: list[int] = []

    def batches_of(number: tf.Tensor) -> tf.data.Dataset:
        begin = number * block
        return tf.data.Dataset.range(begin, tf.minimum(begin + block, count)).batch(batch_size)

    def make() -> tf.data.Dataset:
        epochs.append(len(epochs))
        dataset = tf.data.Dataset.range(-(-count // block)).flat_map(batches_of)
        dataset = dataset.map(_example_of(nbytes))
        return dataset.apply(
            tf.data.experimental.service.distribute(
                processing_mode=tf.data.experimental.service.ShardingPolicy.DYNAMIC,
                service=address,
                job_name=f"{name} {len(epochs)}",
                compression=None,
            )
        )

    _pipelines[name] = make


def close(names: list[str]) -> None:
    """Gives up pipelines."""
    for name in names:
        _pipelines.pop(name)
        if name in _caches:
            _caches.pop(name).close()
    gc.collect()


def epochs(name: str, seconds: float = 0.0, step: float = 0.0, wait_for_all: bool = True) -> dict:
    """Reads whole epochs until so many seconds have passed, and sleeps in every step.

    Returns the `rows` that came in so many `seconds` and `cpu_seconds` of this process, those that
    came behind the first batch in how many `steady_seconds`, how long the steps `waited` for them,
    and the steps.
    """
    pipeline = _pipelines[name]
    if wait_for_all and _strategy:
        _strategy[0].barrier()
    rows = steps = first_rows = 0
    waited = 0.0
    first = None
    begin, cpu = time.monotonic(), time.process_time()
    while first is None or time.monotonic() - begin < seconds:
        iterator = iter(pipeline())
        while True:
            asked = time.monotonic()
            batch = next(iterator, None)
            came = time.monotonic()
            waited += came - asked
            if batch is None:
                break
            if first is None:
                first, first_rows = came, len(batch)
            rows += len(batch)
            steps += 1
            if step:
                time.sleep(step)
        if first is None:
            break
    end = time.monotonic()
    return {
        "rows": rows,
        "steps": steps,
        "seconds": end - begin,
        "cpu_seconds": time.process_time() - cpu,
        "waited": waited,
        "steady_rows": rows - first_rows,
        "steady_seconds": end - (first or begin),
    }


def numbers(name: str) -> list[int]:
    """The numbers of the examples of an epoch, in its order."""
    heads = [batch[:, :_HEAD].numpy() for batch in _pipelines[name]()]
    return np.concatenate(heads).view(np.int64).ravel().tolist() if heads else []


def statistics(name: str) -> dict:
    """Those of a cache."""
    return _caches[name].statistics()


def memory() -> int:
    """The bytes of memory of this process, of shared ones its share."""
    gc.collect()
    with open("/proc/self/smaps_rollup") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("Pss:"))
