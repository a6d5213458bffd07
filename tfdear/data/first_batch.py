# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The first global batch of every epoch is compared over the ranks.

[Note: The first batch comes twice]
Every rank cuts its rows out of global batches that all ranks must share. Whether they do is checked
in the pipeline, before the cut: there the first batch's checksum is taken. To have it before any
step starts, an iterator's first element is read when the iterator is first used, and discarded; the
pipeline yields it a second time, so that the script misses nothing, and the script's own data are
not read again. Later batches, the first of an epoch where an iterator goes through several and all
where that is asked for, are compared by the last step of the pipeline when they are asked for:
there, and only there, the ranks come by in the same order.
"""

import dataclasses
import fractions
import functools
import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from absl import logging

from tfdear.data import autotuning, blank_batch, pipeline_order

# Takes a list of integers and returns every rank's, in the order of the ranks.
Gather: TypeAlias = Callable[[list[int]], list[list[int]]]

# Where a dataset keeps its comparison.
COMPARISON = "_tfdear_first_batch"

_REMEDIES = (
    "Under the default sharding policy every rank passes the same global batches, and the "
    "strategy cuts each rank's rows out of them, so these ranks would leave out examples of each "
    "other. If every rank is to train on data of its own (`dataset.shard`, own files or arrays), "
    "set `options.experimental_distribute.auto_shard_policy = "
    "tf.data.experimental.AutoShardPolicy.OFF` in the dataset's options, or build the dataset in "
    "`strategy.distribute_datasets_from_function`. If not, give every rank the same arrays, files "
    "and seeds."
)


@dataclasses.dataclass(eq=False)
class Seen:
    """What is known of a dataset's batches by its first ones; it does not hold the dataset."""

    # The first row of the last first batch, by component; empty if they are not all tensors.
    row: list[np.ndarray] = dataclasses.field(default_factory=list)
    # Whether parts of a batch have different numbers of rows, so that a rank may hold different
    # shares of them.
    is_uneven: bool = False


class _Comparison:
    """Compares what pipelines noted of batches.

    It does not hold the dataset: TensorFlow keeps a function of Python's that a pipeline calls, and
    all that it holds, for as long as the process lives.
    """

    def __init__(
        self, order: pipeline_order.Order, rank: int, gather: Gather, gather_later: Gather
    ):
        self.order = order
        self.rank = rank
        self.gather = gather
        self.gather_later = gather_later
        self.seen = Seen()
        self._digests: list[int] = []
        self._rows: list[int] = []

    def note(self, examples: int, *tensors: np.ndarray) -> np.int64:
        """Takes the parts of a batch, the first `examples` of which have a row for each example.

        Returns how often the batch is to be yielded.
        """
        self._digests = _digests_of(examples, *tensors).tolist()
        self._rows = [len(tensor) for tensor in tensors[:examples]]
        dense = examples == len(tensors) and all(self._rows)
        self.seen.row[:] = [np.array(tensor[:1]) for tensor in tensors] if dense else []
        return np.int64(2)

    def compare(self, found: bool) -> None:
        """As `FirstBatch.compare`."""
        world_size = self._compare(found, self._digests, "The first batch", self.gather)
        # If only the last batch has uneven shares, what was traced before cannot be changed.
        self.seen.is_uneven |= found and len({rows for rows in self._rows if rows}) > 1
        if found and self.rank == 0 and _shares_differ(self._rows, world_size):
            _warn_of_shares(self._rows, world_size)

    def compare_later(self, position: np.int64, digests: np.ndarray, found: np.bool_) -> np.int64:
        """Compares a later batch, in a pipeline."""
        which = f"Batch {int(position)} of an iterator, counted from 0,"
        self._compare(bool(found), digests.tolist(), which, self.gather_later)
        return np.int64(1)

    def _compare(self, found: bool, digests: list[int], which: str, gather: Gather) -> int:
        """Compares a batch with those of the other ranks, and returns how many there are."""
        cores = _cores() if self.order.counts_cores else 0
        random = self.order.draws + 2 * self.order.generated
        own = [int(found), cores, _processor(), random, *(digests if found else [])]
        ranks = gather(own)
        if len({rank[0] for rank in ranks}) > 1:
            having, missing = (
                [number for number, rank in enumerate(ranks) if rank[0] == flag] for flag in (1, 0)
            )
            raise ValueError(
                f"Rank {self.rank}: the ranks do not have the same data. {which} is there on "
                f"ranks {having}, and not on ranks {missing}. {_REMEDIES}"
            )
        if len({rank[1] for rank in ranks}) > 1:
            raise ValueError(
                f"Rank {self.rank}: this dataset interleaves as many inputs as there are cores, "
                f"and the ranks may use different numbers of cores: {[rank[1] for rank in ranks]}. "
                "Each would see its elements in another order. Give `interleave` a `cycle_length`, "
                "and readers a number of `num_parallel_reads`."
            )
        groups: dict[tuple, list[int]] = {}
        for number, rank in enumerate(ranks):
            groups.setdefault(tuple(rank[4:]), []).append(number)
        if len(groups) == 1:
            return len(ranks)
        # The contents of examples may differ where they are drawn at random, or computed by
        # different kinds of processors. If some component tells the examples apart and is the same
        # on all ranks, then the examples are the same.
        random = any(rank[3] for rank in ranks) or len({rank[2] for rank in ranks}) > 1
        if random and _same_examples(list(groups)):
            return len(ranks)
        message = (
            f"Rank {self.rank}: the ranks do not see the same global batches. {which} is the "
            f"same only within these groups of ranks: {list(groups.values())}. {_REMEDIES}"
        )
        if any(rank[3] & 1 for rank in ranks) or len({rank[2] for rank in ranks}) > 1:
            # That may be all that differs: it cannot be decided here.
            logging.log_first_n(
                logging.WARNING,
                "tfdear: %s This is no error because the pipeline draws random numbers in parallel "
                "or calls Python functions, or the ranks run on different processors, which may "
                "be all that differs.",
                1,
                message,
            )
            return len(ranks)
        raise ValueError(message)


@dataclasses.dataclass(eq=False)
class FirstBatch:
    """Compares the first global batches of the epochs of one dataset."""

    source: tf.data.Dataset  # Yields global batches.
    share: Callable[[object], object]  # Returns this rank's rows of a batch.
    finish: Callable[[tf.data.Dataset], tf.data.Dataset]  # Makes of such rows what is iterated.
    # How many calls of `share` run at a time. None: elements are read when they are asked for.
    parallel_calls: int | None
    order: pipeline_order.Order
    rank: int
    gather: Gather
    gather_later: Gather  # The same, from within a pipeline.
    _datasets: dict[int | None, tf.data.Dataset] = dataclasses.field(
        default_factory=dict, init=False
    )

    def __post_init__(self) -> None:
        self._comparison = _Comparison(self.order, self.rank, self.gather, self.gather_later)

    @property
    def seen(self) -> Seen:
        """What is known of the dataset's batches."""
        return self._comparison.seen

    def compare(self, found: bool) -> None:
        """Raises a ValueError if the batches that the ranks noted last differ. All must call it.

        `found`: whether this rank's iterator has a first batch.
        """
        self._comparison.compare(found)

    def dataset(self, every: int | None = None) -> tf.data.Dataset:
        """The rank's rows of every batch, those of the first batch twice.

        `every`: the number of batches of which the pipeline compares the first; None: it compares
        none. With one, the end is compared, too.
        """
        if every not in self._datasets:
            self._datasets[every] = autotuning.switch_off_unused(self._rows_of_batches(every))
        return self._datasets[every]

    def _rows_of_batches(self, every: int | None) -> tf.data.Dataset:
        # AutoGraph would take longer to find nothing to convert than TensorFlow takes to trace.
        @tf.autograph.experimental.do_not_convert
        def cut_and_note(position: tf.Tensor, batch: object) -> tuple[object, tf.Tensor, tf.Tensor]:
            # Tensors first: their rows are examples. Then the components of the other values.
            flat = sorted(
                tf.nest.flatten(batch), key=lambda value: not isinstance(value, tf.Tensor)
            )
            tensors = sum(isinstance(value, tf.Tensor) for value in flat)
            parts = tf.nest.flatten(flat, expand_composites=True)
            none = (None, tf.variant, tf.resource)
            plain = [value for value in parts if getattr(value, "dtype", None) not in none]

            def call(function: Callable) -> tf.Tensor:
                # Declared stateless, as TensorFlow would refuse to save the iterator's position.
                function = functools.partial(function, tensors)
                return tf.numpy_function(function, plain, tf.int64, stateful=False)

            times = tf.cond(position > 0, lambda: np.int64(1), lambda: call(self._comparison.note))
            digests = tf.zeros([0], tf.int64)
            if every is not None:
                is_due = (position > 0) & (position % every == 0)
                digests = tf.cond(is_due, lambda: call(_digests_of), lambda: digests)
            return self.share(batch), tf.ensure_shape(times, []), tf.ensure_shape(digests, [None])

        @tf.autograph.experimental.do_not_convert
        def repeat(rows: object, times: tf.Tensor, digests: tf.Tensor) -> tf.data.Dataset:
            element = rows if every is None else (rows, digests)
            return tf.data.Dataset.from_tensors(element).repeat(times)

        # As `enumerate` does, without the step that hides the pipeline before it.
        positions = tf.data.Dataset.range(np.iinfo(np.int64).max)
        rows = tf.data.Dataset.zip((positions, self.source)).map(
            cut_and_note,
            self.parallel_calls,
            deterministic=None if self.parallel_calls is None else True,
        )
        rows = self.finish(rows.flat_map(repeat))
        return rows if every is None else self._compare_when_asked_for(rows, every)

    def _compare_when_asked_for(self, rows: tf.data.Dataset, every: int) -> tf.data.Dataset:
        """Takes rows with digests, and yields the rows when the digests were compared."""
        specification = rows.element_spec
        rows = tf.data.Dataset.zip((rows, tf.data.Dataset.from_tensors(True).repeat()))
        if every == 1:
            end = (blank_batch.of(specification), False)
            rows = rows.concatenate(tf.data.Dataset.from_tensors(end))

        # The first batch comes twice, and is compared outside of the pipeline.
        @tf.autograph.experimental.do_not_convert
        def compare(position: tf.Tensor, element: Any) -> tuple[tf.Tensor, object]:
            (batch, digests), present = element
            step = tf.cond(
                (tf.size(digests) > 0) | ~present,
                lambda: tf.numpy_function(
                    self._comparison.compare_later,
                    [position, digests, present],
                    tf.int64,
                    stateful=False,
                ),
                lambda: np.int64(1),
            )
            return position + tf.ensure_shape(step, []), (batch, present)

        # Neither of these steps is made parallel by TensorFlow, as a `map` would be.
        rows = rows.scan(np.int64(-1), compare).take_while(lambda batch, present: present)
        rows = rows.scan(np.int64(0), lambda state, element: (state, element[0]))
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        return rows.with_options(options)


def _warn_of_shares(rows: Sequence[int], world_size: int) -> None:
    logging.log_first_n(
        logging.WARNING,
        "tfdear: the parts of a batch have different numbers of rows, %s, and %d ranks cut each of "
        "them, so that the ranks' shares of these parts differ. Keras's loss objects and metrics "
        "count by the rows that they are given. What the step averages by hand counts by the "
        "rank's share of the first part, without which a rank counts for nothing: means over other "
        "parts come out differently from one process. Let every number be a multiple of %d, or let "
        "none be below %d and take loss objects.",
        1,
        rows,
        world_size,
        world_size,
        world_size,
    )


def _digests_of(examples: int, *tensors: np.ndarray) -> np.ndarray:
    """For each tensor a checksum, and whether it tells examples apart.

    `examples`: how many of the tensors have a row for each example; they are the first ones.
    """
    digests: list[int] = []
    for index, tensor in enumerate(tensors):
        digest, differ = _digest(tensor)
        digests += [digest, int(differ and index < examples)]
    return np.array(digests, np.int64)


def _digest(tensor: np.ndarray) -> tuple[int, bool]:
    """A checksum of a tensor, and whether it has rows that differ from each other."""
    tensor = np.asarray(tensor)
    content = hashlib.blake2b(f"{tensor.dtype} {tensor.shape}".encode(), digest_size=8)
    if tensor.dtype == object:
        for value in tensor.ravel():
            content.update(len(value).to_bytes(8, "little") + value)
    else:
        content.update(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
    differ = bool(tensor.ndim and len(tensor) > 1 and (tensor[1:] != tensor[:1]).any())
    return int.from_bytes(content.digest(), "little", signed=True), differ


def _shares_differ(rows: Sequence[int], world_size: int) -> bool:
    """Whether some rank has different shares of components with these numbers of rows."""
    shares = {
        tuple(fractions.Fraction(rank * n // world_size, n) for rank in range(world_size))
        for n in rows
        if n
    }
    return len(shares) > 1


def _same_examples(digests: Sequence[tuple[int, ...]]) -> bool:
    """Whether a component whose rows differ from each other is the same in all of them."""
    if len({len(each) for each in digests}) > 1:
        return False
    parts = zip(*(zip(each[::2], each[1::2], strict=True) for each in digests), strict=True)
    return any(len(set(part)) == 1 and part[0][1] for part in parts)


def _cores() -> int:
    """The number of cores as TensorFlow counts them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0


@functools.cache
def _processor() -> int:
    """A number for the kind of processor: what it can do decides how floats are rounded."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            kind = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        kind = platform.machine()
    digest = hashlib.blake2b(kind.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
