# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The data sets of a cache."""

import tensorflow as tf

from tfdear.engine import library
from tfdear.engine.example_store import ExampleReader


class CachedBatches(tf.data.Dataset):
    """Batches of a cache, of which this rank has its rows. Each iteration is an epoch.

    Args:
        owner: What must live as long as the data set.
        reader: Which examples are in which batch.
        spec: Of an element.
        start: The epoch and the step of the first iteration.
        read_ahead: Batches whose examples are asked for before the batch is.
        batched: Whether elements are batches; else single examples.
        positions: Whether the last component has the places of the rows.
    """

    def __init__(
        self,
        owner: object,
        reader: ExampleReader,
        spec: object,
        start: tuple[int, int],
        read_ahead: int,
        *,
        batched: bool = True,
        positions: bool = False,
    ):
        self.owner = owner
        self.reader = reader
        self.start = start
        self.batched = batched
        # Of the epoch that `fit` begins next, those that an earlier `fit` has done.
        self.steps_done = 0
        self._spec = spec
        specs = tf.nest.flatten(spec)
        super().__init__(
            library.load().dear_cached_batches_dataset(
                reader.number,
                read_ahead,
                batched=batched,
                positions=positions,
                output_types=[component.dtype for component in specs],
                output_shapes=[component.shape for component in specs],
            )
        )

    def _inputs(self) -> list[tf.data.Dataset]:
        return []

    @property
    def element_spec(self) -> object:
        return self._spec
