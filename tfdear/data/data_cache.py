# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A cache of prepared examples in memory."""

import dataclasses
import os
import weakref
from collections.abc import Callable
from typing import Any, SupportsIndex

import tensorflow as tf

from tfdear._private import seams
from tfdear.base.sizes import bytes_of
from tfdear.data import (
    cache_agreement,
    cache_options,
    cached_batches,
    fill_progress,
    fit_epochs,
    shared_examples,
    shared_listing,
)
from tfdear.data.cached_batches import CachedBatches, Reading
from tfdear.data.dataset_records import DatasetRecords
from tfdear.data.disk_cache import DiskCache
from tfdear.data.memory_bound import MemoryBound
from tfdear.data.preparation import Preparation
from tfdear.data.prepared_records import PreparedRecords
from tfdear.data.read_statistics import ReadStatistics
from tfdear.data.record_source import RecordSource, fingerprint_of
from tfdear.engine.example_store import ExampleReader
from tfdear.job import job as job_module

_LOOK_SECONDS = 0.2  # How often `fill` looks for an interrupt.
_EXAMPLES_OF_BATCH = 64  # Single examples are asked for as those of such batches are.

seams.install(fit_epochs.SEAMS)


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
        source: Raw records: `TFRecordFiles`, `ArrayRecordFiles` or `ImageFolder` of `tfdear.data`,
            or a finite data set of small ones such as paths or serialized examples, which every
            rank reads once and keeps in memory.
        prepare: From a raw record to an example, which may be nested dense tensors of numbers or
            strings; the components of a tuple come as several arguments, as in `Dataset.map`. It
            is traced once, and must give the same example each time: random augmentation belongs
            behind the cache. Defaults to None: examples are the raw records.
        strategy: The `DearStrategy` whose ranks share the cache. Defaults to None: that of this
            process, if there is one.
        memory: Bytes for the examples in the memory of a node, an int or text such as "12GiB".
            Defaults to None: half of what is available and not promised to other caches.
        directory: A folder on a local disk of every node where records are kept for further runs.
            Defaults to None: there is none.
        disk: Bytes that a node writes there, at most. Defaults to None: all but a tenth of what is
            free.
        disk_holds: "raw": the source's records, small, and of use for any `prepare`; "prepared":
            examples, for the same `prepare` alone. Defaults to "raw".
        placement: "sharded": an example lies in the memory of one node, and others get it from
            there; "replicated": every node prepares and keeps all of them. Defaults to "sharded".
        read_ahead: Batches whose examples are asked for before training asks for the batch.
            Defaults to 2.
        threads: Calls of `prepare` at a time, of this rank. Defaults to None: as many as the rank
            has cores.
        max_rate: Bytes per second that a rank takes from other nodes, at most, so that gradients
            keep the line. Defaults to None: no limit.
        on_error: What becomes of an example that `prepare` fails for, or whose raw record is
            damaged. "raise": the step that needs it raises; "skip": it is left out of its batch, on
            every rank, with a warning that has its name. A source that cannot be read always
            raises. Defaults to "raise".
        verify: Whether checksums of what comes from the local disk and from other nodes are
            compared. Defaults to True.
        version: Text that tells records apart whose files have the same names, sizes and times;
            needed with `disk_holds="prepared"` where `prepare` calls Python, reads files or state.

    Raises:
        ValueError: An argument is out of range; `prepare` is random, changes a variable, or returns
            what is no dense tensor; `version` is missing; or the ranks make different caches.
        TfdearError: There is no memory for the cache, or not all ranks make it.

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
        strategy: tf.distribute.Strategy | None = None,
        memory: int | str | None = None,
        directory: str | os.PathLike | None = None,
        disk: int | str | None = None,
        disk_holds: str = "raw",
        placement: str = "sharded",
        read_ahead: int = 2,
        threads: int | None = None,
        max_rate: float | None = None,
        on_error: str = "raise",
        verify: bool = True,
        version: str = "",
    ):
        read_ahead = cache_options.whole("read_ahead", read_ahead, 0)
        threads = None if threads is None else cache_options.whole("threads", threads, 1)
        cache_options.check_choices(placement=placement, disk_holds=disk_holds, on_error=on_error)
        cache_options.check_disk(directory, disk, disk_holds)
        cache_options.check_rate(max_rate)
        cache_options.check_version(version)
        cache_options.check_source(source)
        if isinstance(source, tf.data.Dataset):
            source = DatasetRecords(source)
        self._job = job_module.current() if strategy is None else cache_options.job_of(strategy)
        self._disk: DiskCache | None = None
        memory_bytes = cache_options.memory_bytes_of(memory)
        disk_bytes = None if disk is None else bytes_of(disk, "disk")
        # First of all, as the exchanges that follow depend on them.
        cache_agreement.compare(
            self._job,
            "DataCache",
            {
                "directory": "None" if directory is None else "a folder",
                "disk_holds": disk_holds,
                "memory": str(memory),
                "placement": placement,
                "on_error": on_error,
                "version": version,
            },
        )
        shared_listing.list_source(source, directory, version, self._job)
        local_size = 1 if self._job is None else self._job.node.local_size
        self._threads = threads or max(1, len(os.sched_getaffinity(0)) // local_size)
        self._preparation = Preparation.trace(prepare, source.element_spec)
        description = cache_agreement.description_of(source, self._preparation, self._job)
        self._checksum = fingerprint_of(*description.values())
        self._source: RecordSource = source
        self._reads = ReadStatistics()
        if directory is not None:
            if disk_holds == "prepared":
                self._preparation.check(source)
                prepared = PreparedRecords(source, self._preparation, self._threads, version)
                self._preparation = Preparation.trace(prepared.parse, prepared.element_spec)
                self._source = prepared
            self._disk = self._source = shared_examples.open_disk(
                self._source, source, directory, disk_bytes, version, verify, self._job
            )
            self._reads = self._disk.statistics
        if disk_holds == "raw":
            self._preparation.check(self._source)
        self._read_ahead = read_ahead
        self._skip = on_error == "skip"
        self._store = shared_examples.open_store(
            len(source), memory_bytes, placement, max_rate or 0.0, verify, description, self._job
        )
        self._bound = MemoryBound(self._store.number, local_size, memory_bytes)
        self._parted = placement == "sharded" and bool(self._store.parts)
        self._started = False
        of_node = shared_examples.examples_of_node(self._store, self._job) if self._parted else None
        self._filling = fill_progress.Filling(
            self._store, self._reads, len(source) if of_node is None else of_node
        )
        self._end_telling: Callable[[], object] = lambda: None
        if self._job is not None:
            self._job.close_with(self)
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
        batch_size: SupportsIndex,
        *,
        shuffle: bool = True,
        seed: SupportsIndex | None = None,
        drop_remainder: bool = False,
        order: str = "global",
        positions: bool = False,
        start: tuple[SupportsIndex, SupportsIndex] = (0, 0),
    ) -> tf.data.Dataset:
        """A data set of this rank's rows of batches; each iteration is an epoch.

        All ranks call it together, with the same arguments. In `fit` epochs have the numbers of
        Keras. Elsewhere those of a data set that the strategy has distributed are counted as all
        ranks begin them, and those of any other one as this rank does.
        The batches of an epoch are the same for any number of ranks: rank r of P has rows
        `[r * n // P, (r + 1) * n // P)` of a batch of n.

        Args:
            batch_size: Examples of a batch, of all ranks together.
            shuffle: Whether every epoch has an order of its own, which follows from the seed and
                the number of the epoch alone. Else the order is that of the source.
            seed: Of the orders, an int. Defaults to None: the seed of `keras.utils.set_random_seed`
                or `tf.random.set_seed` on rank 0, and always the same one if neither was called.
            drop_remainder: Whether examples at the end that do not fill a batch are left out.
            order: "global": any rank reads any example; "node": ranks read the examples that their
                node prepares and keeps, in an order of their own, so that nothing but a few at the
                end of an epoch crosses the network. That order depends on the nodes, and on who is
                where; batches should divide by the number of ranks. Defaults to "global".
            positions: Whether batches have another component, int64: for each row the epoch times
                the number of examples, and the row's place in the epoch. It is the same whatever
                prepares or reads the row: the seed for its augmentation. Of a tuple it becomes the
                last component; else elements are `(example, positions)`.
            start: Epoch and step with which the first iteration begins; in `fit`, the step with
                which that epoch does.

        Raises:
            ValueError: An argument is out of range, tensors of examples have unknown shapes, the
                ranks give different arguments, or the cache was made without their strategy.
            RendezvousTimeoutError: Not all ranks call it.
        """
        self._check_open()
        cache_options.check_choices(order=order)
        batch_size = cache_options.whole("batch_size", batch_size, 1)
        start = cache_options.epoch_and_step(start)
        cached_batches.check_shapes(self.element_spec, batched=True)
        reading = Reading(
            batch_size=batch_size,
            shuffle=bool(shuffle),
            drop_remainder=bool(drop_remainder),
            order=order,
            positions=bool(positions),
            start=start,
        )
        return self._dataset("DataCache.batches", reading, seed)

    def examples(
        self, *, shuffle: bool = True, seed: SupportsIndex | None = None
    ) -> tf.data.Dataset:
        """A data set of this rank's examples, one by one; each iteration is an epoch.

        Use it for what works on single examples, such as batches by their lengths; it also takes
        examples of several shapes. Large tensors are not copied: they are where the cache has them.
        All ranks call it together. Of P ranks, rank r has the examples at positions r, r + P,
        r + 2 P, ... of the epoch, so that some ranks may have one example more than others.

        Args:
            shuffle: As in `batches`.
            seed: As in `batches`.

        Raises:
            ValueError: Tensors of examples have an unknown number of dimensions, the ranks give
                different arguments, or the cache was made without their strategy.
            RendezvousTimeoutError: Not all ranks call it.
        """
        self._check_open()
        cached_batches.check_shapes(self.element_spec, batched=False)
        world_size = 1 if self._job is None else self._job.world_size
        reading = Reading(batch_size=world_size, shuffle=bool(shuffle), batched=False)
        return self._dataset("DataCache.examples", reading, seed)

    def fill(self) -> None:
        """Prepares this rank's examples before training, as many as fit.

        Use it where the source is slow in random order: they are read in the order of the source,
        by parts of several mebibytes. All ranks call it; it does not wait for the other ones.

        Raises:
            TfdearError: An example cannot be read or prepared.
        """
        self._check_open()
        self._store.read_in_order()
        self._start_preparation()
        while not self._store.await_filled(_LOOK_SECONDS):
            pass

    def progress(self) -> dict[str, Any]:
        """How far the first epoch, or `fill`, is, on this node.

        Rank 0 logs the same every 10 seconds.

        Returns:
            `examples`: that the node is to hold; `done`: those in its memory; `seconds`: since the
            first was asked for; `examples_per_second`; `source_rate`, `disk_rate`, `fetch_rate`:
            bytes per second that this rank reads of the source, of its disk and of other nodes, on
            average since then; `seconds_left`: 0 where all are there or no more fits, None before
            the first.
        """
        self._check_open()
        return dataclasses.asdict(self._filling.progress())

    def close(self) -> None:
        """Ends the preparation. What is in memory is freed when no data set holds it any more.

        A strategy that is closed does it for its caches.
        """
        self._end_telling()
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
            nodes and went there; `refused`: connections that broke the rules; `skipped`: examples
            that this rank had to leave out; `source_records`, `source_bytes`, `disk_records`,
            `disk_bytes`: raw records that this rank read from there; `damaged`: those on disk that
            had to be read from the source again.
        """
        self._check_open()
        numbers = dataclasses.asdict(self._store.progress())
        seconds = numbers.pop("waited_micros") / 1e6
        reads = dataclasses.asdict(self._reads)
        return {**numbers, "wait_seconds": seconds, "full": bool(numbers["full"]), **reads}

    def _dataset(self, call: str, reading: Reading, seed: SupportsIndex | None) -> tf.data.Dataset:
        cache_agreement.check_made_for(self._job)
        arguments = {"cache with checksum": self._checksum, **dataclasses.asdict(reading)}
        agreed_seed = cache_agreement.seed_of(self._job, call, seed, arguments)
        reader = ExampleReader(
            self._store,
            reading.batch_size,
            shuffle=reading.shuffle,
            seed=agreed_seed,
            within_nodes=reading.order == "node" and self._parted,
            drop_remainder=reading.drop_remainder,
            may_skip=self._skip,
            start=reading.start,
            rank=0 if self._job is None else self._job.rank,
            world_size=1 if self._job is None else self._job.world_size,
        )
        if reading.start[1] > reader.steps:
            raise ValueError(
                f"`start` must be a step of an epoch, which has {reader.steps}. Received: "
                f"{reading.start!r}"
            )
        reader.lead()
        self._start_preparation()
        dataset = CachedBatches(
            self,
            reader,
            self.element_spec,
            self._read_ahead * (1 if reading.batched else _EXAMPLES_OF_BATCH),
            reading,
            job=self._job,
            checksum=cache_agreement.checksum_of(arguments, agreed_seed),
        )
        return cached_batches.as_own(dataset)

    def _start_preparation(self) -> None:
        if self._started:
            return
        self._started = True
        self._filling.begin()
        self._preparation.start(
            self._store.number,
            self._source,
            self._threads,
            skip=self._skip,
            bound=self._bound,
            reads=self._reads if self._disk is None else None,
        )
        if self._job is None or self._job.rank == 0:
            self._end_telling = fill_progress.tell(self._filling)

    def _check_open(self) -> None:
        if self._store.is_closed:
            raise ValueError("This DataCache was closed. Make another one.")
