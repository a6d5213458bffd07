# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The elements of a data set as raw records by number."""

import numpy as np
import tensorflow as tf
from absl import logging

from tfdear.data import pipeline_order
from tfdear.data.record_source import fingerprint_of
from tfdear.job import seeds

_BLOCK = 1024


class DatasetRecords:
    """The elements of a finite `tf.data.Dataset`, all in memory: paths, or serialized examples.

    Raises:
        ValueError: The data set is endless, or its elements are not dense tensors of known shapes.
    """

    def __init__(self, dataset: tf.data.Dataset):
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError("A DataCache needs a finite data set. Received: one that is endless")
        self._spec = dataset.element_spec
        specs = tf.nest.flatten(self._spec)
        for spec in specs:
            if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
                raise ValueError(
                    "Elements of a data set that a cache reads must be dense tensors of known "
                    "shapes, such as paths or serialized examples; `prepare` makes more of them. "
                    f"Received: {spec}"
                )
        if unseeded := pipeline_order.inspect(dataset, seeds.drawn).unseeded:
            logging.warning(
                "tfdear: DataCache: the source's elements come in another order in every run "
                "(%s), so that their numbers mean others: a further run finds nothing in "
                "`directory`, and training that is resumed within an epoch sees some examples "
                "twice and others not at all. Leave the order to the cache, which shuffles, as by "
                "`list_files(..., shuffle=False)`, or call `keras.utils.set_random_seed` first.",
                ", ".join(sorted(unseeded)),
            )
        parts: list[list[np.ndarray]] = [
            [np.zeros([0, *spec.shape], spec.dtype.as_numpy_dtype)] for spec in specs
        ]
        for block in dataset.batch(_BLOCK):
            for part, tensor in zip(parts, tf.nest.flatten(block), strict=True):
                part.append(tensor.numpy())
        self._arrays = [np.concatenate(part) for part in parts]

    def __len__(self) -> int:
        return len(self._arrays[0])

    @property
    def element_spec(self) -> object:
        """That of the data set."""
        return self._spec

    def read(self, numbers: np.ndarray) -> tuple[list[tf.Tensor], tf.Tensor]:
        """As `RecordSource.read`."""
        return [tf.constant(array[numbers]) for array in self._arrays], tf.fill(len(numbers), "")

    @property
    def records_per_read(self) -> int:
        """They are in memory."""
        return 1

    def fingerprint(self) -> str:
        """As `RecordSource.fingerprint`: of all elements."""
        return fingerprint_of(*self._arrays)

    def modification_times(self) -> np.ndarray:
        """As `RecordSource.modification_times`: there are none."""
        return np.zeros(0, np.int64)

    def name(self, number: int) -> str:
        """An element's number."""
        return f"element {number} of the data set"
