# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A cache of prepared examples in memory."""

import dataclasses
import os
import time
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from tfdear._private import seams
from tfdear.base import memory as memory_module
from tfdear.base.checks import is_number, is_whole
from tfdear.base.sizes import bytes_of
from tfdear.data import cached_batches, global_batches, shared_examples, shared_listing
from tfdear.data.cached_batches import CachedBatches
from tfdear.data.dataset_records import DatasetRecords
from tfdear.data.disk_cache import DiskCache
from tfdear.data.preparation import Preparation
from tfdear.data.record_source import RecordSource
from tfdear.engine.example_store import ExampleReader
from tfdear.job import job as job_module

_PLACEMENTS = ("sharded", "replicated")
# How often `fill` looks for an interrupt, and says how far it is.
_LOOK_SECONDS, _TELL_SECONDS = 0.2, 10.0

seams.install(cached_batches.SEAMS)


class DataCache:
    """Reads and prepares every example once for a job, and keeps it in the memory of a node.

    Use it where reading and decoding take longer than training: in the first epoch every example is
    read from the source and prepared, in the order in which training needs it; from then on batches
    come from memory. Each rank prepares and keeps a part. The ranks of a node read each other's
    memory; other nodes send their examples over TCP. What does not fit is prepared in every epoch
    by the rank that needs it.

    Under a `DearStrategy` of several ranks, all of them make the same caches and call the same
    methods, after the strategy is made. The data sets have the rows of this rank already; `fit`,
    `evaluate` and `predict` take them as they are.

    Args:
        source: Raw records: `tfdear.data.TFRecordFiles`, `tfdear.data.ImageFolder`, or a finite
            data set of small ones such as paths or serialized examples, which every rank reads
            once and keeps in memory.
        prepare: From a raw record to an example, which may be nested dense tensors of numbers or
            strings; the components of a tuple come as several arguments, as in `Dataset.map`. It
            is traced once, and must give the same example each time: random augmentation belongs
            behind the cache. Defaults to None: examples are the raw records.
        memory: Bytes for the examples in the memory of a node, an int or text such as "12GiB".
            Defaults to None: half of what is available.
        directory: A folder on a local disk of every node where raw records are kept for further
            runs, with any `prepare`. Defaults to None: there is none.
        disk: Bytes that a node writes there, at most. Defaults to None: all but a tenth of what is
            free.
        version: Text that tells records apart whose files have the same names and sizes.
        placement: "sharded": an example lies in the memory of one node, and others get it from
            there; "replicated": every node prepares and keeps all of them. Defaults to "sharded".
        max_rate: Bytes per second that a rank takes from other nodes, at most, so that gradients
            keep the line. Defaults to None: no limit.
        read_ahead: Batches that are filled before training asks for them. Defaults to 2.
        threads: Calls of `prepare` at a time, of this rank. Defaults to None: as many as the rank
            has cores.

    Raises:
        ValueError: An argument is out of range; `prepare` is random, changes a variable, or returns
            what is no dense tensor; or the ranks make different caches.
        TfdearError: There is no memory for the cache.

    Example:

    >>> import tempfile
    >>> path = f"{tempfile.mkdtemp()}/numbers.tfrecord"
    >>> with tf.io.TFRecordWriter(path) as writer:
    ...     for number in range(5):
    ...         writer.write(tf.io.serialize_tensor(number).numpy())
    >>> cache = tfdear.data.DataCache(
    ...     tfdear.data.TFRecordFiles(path),
    ...     lambda record: tf.ensure_shape(tf.io.parse_tensor(record, tf.int32), []),
    ... )
    >>> for batch in cache.batches(2, shuffle=False):
    ...     print(*batch.numpy())
    0 1
    2 3
    4

    Reference: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud
    Clusters" (MLSys 2021), section 4.1.
    """

    def __init__(
        self,
        source: RecordSource | tf.data.Dataset,
        prepare: Callable[..., object] | None = None,
        *,
        memory: int | str | None = None,
        directory: str | os.PathLike | None = None,
        disk: int | str | None = None,
        version: str = "",
        placement: str = "sharded",
        max_rate: float | None = None,
        read_ahead: int = 2,
        threads: int | None = None,
    ):
        for name, value, least in (("read_ahead", read_ahead, 0), ("threads", threads, 1)):
            if value is not None and (not is_whole(value) or value < least):
                raise ValueError(
                    f"`{name}` must be a whole number from {least}. Received: {value!r}"
                )
        if placement not in _PLACEMENTS:
            raise ValueError(f"`placement` must be one of {_PLACEMENTS}. Received: {placement!r}")
        if max_rate is not None and (not is_number(max_rate) or max_rate <= 0):
            raise ValueError(
                "`max_rate` must be a positive number of bytes per second, or None. Received: "
                f"{max_rate!r}"
            )
        if isinstance(source, tf.data.Dataset):
            source = DatasetRecords(source)
        self._job = job_module.current()
        self._disk: DiskCache | None = None
        memory_bytes = _memory_bytes(memory)
        disk_bytes = None if disk is None else bytes_of(disk, "disk")
        shared_listing.list_source(source, directory, version, self._job)
        if directory is not None:
            self._disk = shared_examples.open_disk(
                source, directory, disk_bytes, version, self._job
            )
        self._source: RecordSource = source if self._disk is None else self._disk
        self._preparation = Preparation.trace(prepare, source.element_spec)
        self._preparation.check(self._source)
        self._read_ahead = read_ahead
        local_size = 1 if self._job is None else self._job.node.local_size
        self._threads = threads or max(1, len(os.sched_getaffinity(0)) // local_size)
        description = {
            "records with fingerprint": source.fingerprint(),
            "examples of": str(self.element_spec),
            "memory": str(memory),
            "placement": placement,
        }
        self._store = shared_examples.open_store(
            len(source), memory_bytes, placement, max_rate or 0.0, description, self._job
        )
        self._started = False
        if self._disk is not None:
            # The index of what was written, also where the script ends without `close`.
            weakref.finalize(self, self._disk.close)

    def __len__(self) -> int:
        """The number of examples."""
        return len(self._source)

    @property
    def element_spec(self) -> object:
        """The specification of an example."""
        return self._preparation.element_spec

    def batches(
        self,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int | None = None,
        drop_remainder: bool = False,
        positions: bool = False,
        start: tuple[int, int] = (0, 0),
    ) -> tf.data.Dataset:
        """A data set of this rank's rows of batches; each iteration is an epoch.

        Epochs are counted as they begin; in `fit` they have the numbers of Keras.
        The batches of an epoch are the same for any number of ranks: rank r of P has rows
        `[r * n // P, (r + 1) * n // P)` of a batch of n.

        Args:
            batch_size: Examples of a batch, of all ranks together.
            shuffle: Whether every epoch has an order of its own, which follows from the seed and
                the number of the epoch alone. Else the order is that of the source.
            seed: Of the orders, an int. Defaults to None: the seed of `keras.utils.set_random_seed`
                or `tf.random.set_seed`, and always the same one if neither was called.
            drop_remainder: Whether examples at the end that do not fill a batch are left out.
            positions: Whether batches have another component, int64: for each row the epoch times
                the number of examples, and the row's place in the epoch. It is the same whatever
                prepares or reads the row: the seed for its augmentation. Of a tuple it becomes the
                last component; else elements are `(example, positions)`.
            start: Epoch and step with which the first iteration begins.

        Raises:
            ValueError: An argument is out of range, or tensors of examples have unknown shapes.
        """
        self._check_open()
        if not is_whole(batch_size) or batch_size < 1:
            raise ValueError(
                f"`batch_size` must be a whole number from 1. Received: {batch_size!r}"
            )
        if len(start) != 2 or not all(is_whole(number) and number >= 0 for number in start):
            raise ValueError(f"`start` must be an epoch and a step, from 0. Received: {start!r}")
        specs = tf.nest.flatten(self.element_spec)
        if unknown := [spec for spec in specs if not spec.shape.is_fully_defined()]:
            raise ValueError(
                "Examples of unknown shapes cannot be batched. Let `prepare` give all of them one "
                f"shape, with `tf.ensure_shape` if only TensorFlow does not know it. Received: "
                f"{unknown}"
            )
        seed = _seed(seed)
        rank = 0 if self._job is None else self._job.rank
        world_size = 1 if self._job is None else self._job.world_size
        reader = ExampleReader(
            self._store,
            batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_remainder=drop_remainder,
            start=start,
            rank=rank,
            world_size=world_size,
        )
        if start[1] > reader.steps:
            raise ValueError(
                f"`start` must be a step of an epoch, which has {reader.steps}. Received: {start!r}"
            )
        epoch, step = start
        self._store.read_from(shuffle, seed, epoch, step * batch_size)
        self._start_preparation()
        dataset = CachedBatches(
            self, reader, self._batch_spec(positions), self._read_ahead, positions
        )
        return global_batches.mark_distributed(dataset)

    def fill(self) -> None:
        """Prepares this rank's examples before training, as many as fit.

        Use it where the source is slow in random order: they are read in the order of the source,
        by parts of several mebibytes. All ranks call it; it does not wait for the other ones.

        Raises:
            TfdearError: An example cannot be read or prepared.
        """
        self._check_open()
        self._store.read_from(False, 0, 0, 0)
        self._start_preparation()
        begin = told = time.monotonic()
        while not self._store.await_filled(_LOOK_SECONDS):
            if time.monotonic() - told >= _TELL_SECONDS:
                told = time.monotonic()
                self._tell_progress(told - begin)

    def close(self) -> None:
        """Ends the preparation. What is in memory is freed when no data set holds it any more."""
        self._store.close()
        if self._disk is not None:
            self._disk.close()

    def statistics(self) -> dict[str, Any]:
        """Numbers of examples and bytes so far.

        Returns:
            `owned`: examples that this rank prepares and keeps; `held`, `held_bytes`: those of them
            in memory; `held_on_node`: by all ranks of the node; `full`: whether no more fits;
            `prepared`, `prepared_bytes`: all that were prepared; `hits`: reads of examples that
            were in memory; `misses`: reads that had to wait for their example; `wait_seconds`: for
            how long; `fetched`, `fetched_bytes`, `served`, `served_bytes`: what came from other
            nodes and went there; `refused`: connections of strangers. With a `directory` also
            `source_records` and `disk_records`: raw records that were read from there; `damaged`:
            those on disk that had to be read from the source again.
        """
        self._check_open()
        numbers = dataclasses.asdict(self._store.progress())
        seconds = numbers.pop("waited_micros") / 1e6
        of_disk = {} if self._disk is None else dataclasses.asdict(self._disk.statistics)
        return {**numbers, "wait_seconds": seconds, "full": bool(numbers["full"]), **of_disk}

    def _start_preparation(self) -> None:
        if not self._started:
            self._started = True
            self._preparation.start(self._store.number, self._source, self._threads)

    def _tell_progress(self, seconds: float) -> None:
        if self._job is not None and self._job.rank > 0:
            return
        held = self._store.progress().held_on_node
        logging.info(
            "tfdear: DataCache: %d of %d examples are in this node's memory, %.0f per second",
            held,
            len(self),
            held / seconds,
        )

    def _check_open(self) -> None:
        if self._store.is_closed:
            raise ValueError("This DataCache was closed. Make another one.")

    def _batch_spec(self, positions: bool) -> object:
        spec = tf.nest.map_structure(
            lambda component: tf.TensorSpec([None, *component.shape], component.dtype),
            self.element_spec,
        )
        if not positions:
            return spec
        numbers = tf.TensorSpec([None], tf.int64)
        return (*spec, numbers) if type(spec) is tuple else (spec, numbers)


def _memory_bytes(memory: int | str | None) -> int:
    if memory is None:
        return memory_module.available_bytes() // 2
    return bytes_of(memory, "memory")


def _seed(seed: int | None) -> int:
    if seed is None:
        return tf.compat.v1.get_seed(0)[0]
    if not is_whole(seed):
        raise ValueError(f"`seed` must be a whole number. Received: {seed!r}")
    return seed
