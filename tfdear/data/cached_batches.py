# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The data sets of a cache."""

import dataclasses
from collections.abc import Sized

import tensorflow as tf

from tfdear.data import global_batches
from tfdear.engine import library
from tfdear.engine.example_store import ExampleReader
from tfdear.job.job import Job


def check_shapes(element_spec: object, batched: bool) -> None:
    """Raises a ValueError for examples of shapes that cannot be read."""
    specs = tf.nest.flatten(element_spec)
    if batched and (unknown := [spec for spec in specs if not spec.shape.is_fully_defined()]):
        raise ValueError(
            "Examples of unknown shapes cannot be batched. Let `prepare` give all of them one "
            "shape, with `tf.ensure_shape` if only TensorFlow does not know it. Received: "
            f"{unknown}"
        )
    if unknown := [spec for spec in specs if spec.shape.rank is None]:
        raise ValueError(
            "Examples need a known number of dimensions, if not sizes. Let `prepare` say it, as in "
            f"`tf.ensure_shape(image, [None, None, 3])`. Received: {unknown}"
        )


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a data set reads a cache; the same on all ranks."""

    batch_size: int  # Of all ranks.
    shuffle: bool
    drop_remainder: bool = False
    order: str = "global"
    start: tuple[int, int] = (0, 0)  # The epoch and the step of the first iteration.
    batched: bool = True  # Whether elements are batches; else single examples.
    positions: bool = False  # Whether the last component has the places of the rows.


class CachedBatches(tf.data.Dataset):
    """Batches of a cache, of which this rank has its rows. Each iteration is an epoch.

    Args:
        owner: The cache, which must live as long as the data set.
        reader: Which examples are in which batch.
        element_spec: Of an example.
        read_ahead: Batches whose examples are asked for before the batch is.
        reading: What it reads of the cache.
        job: The ranks that share the cache; None: this process alone.
        checksum: Of what ranks say alike when they make it.
    """

    def __init__(
        self,
        owner: Sized,
        reader: ExampleReader,
        element_spec: object,
        read_ahead: int,
        reading: Reading,
        *,
        job: Job | None,
        checksum: int,
    ):
        self.owner = owner
        self.reader = reader
        self.job = job
        self.checksum = checksum
        self.reading = reading
        # Of the next iteration that all ranks begin; None: as the reader counts.
        self._next: tuple[int, int] | None = reading.start
        # Of the epoch that `fit` begins next, those that an earlier `fit` has done.
        self.steps_done = 0
        self._spec = (
            _batch_spec(element_spec, reading.positions) if reading.batched else element_spec
        )
        specs = tf.nest.flatten(self._spec)
        super().__init__(
            library.load().dear_cached_batches_dataset(
                reader.number,
                read_ahead,
                batched=reading.batched,
                positions=reading.positions,
                output_types=[component.dtype for component in specs],
                output_shapes=[component.shape for component in specs],
            )
        )

    def _inputs(self) -> list[tf.data.Dataset]:
        return []

    def begin_with(self, epoch: int, step: int = 0) -> None:
        """Says where the next iteration begins."""
        self._next = epoch, step
        self.reader.begin_with(epoch, step)

    def begin(self, epochs: int) -> tuple[int, int]:
        """An iteration of so many epochs begins on all ranks; returns its epoch and step.

        Both are -1 where the reader counts.
        """
        if self._next is None:
            return -1, -1
        epoch, step = self._next
        self.reader.begin_with(epoch, step)
        self._next = epoch + epochs, 0
        return epoch, step

    def leave_counting(self) -> None:
        """Leaves it to the reader where iterations begin, until `begin_with` says it."""
        self._next = None

    @property
    def element_spec(self) -> object:
        return self._spec


def _batch_spec(element_spec: object, positions: bool) -> object:
    spec = tf.nest.map_structure(
        lambda component: tf.TensorSpec([None, *component.shape], component.dtype), element_spec
    )
    if not positions:
        return spec
    numbers = tf.TensorSpec([None], tf.int64)
    return (*spec, numbers) if type(spec) is tuple else (spec, numbers)


def as_own(dataset: CachedBatches) -> tf.data.Dataset:
    """Marks a data set as a rank's own; checkpoints hold positions, not what was read ahead."""
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = True
    return global_batches.mark_distributed(dataset.with_options(options))
