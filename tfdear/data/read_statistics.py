# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How many raw records of a cache were read, and from where."""

import dataclasses
import threading
from collections.abc import Sequence

import tensorflow as tf


@dataclasses.dataclass
class ReadStatistics:
    """What was read so far."""

    source_records: int = 0
    source_bytes: int = 0
    disk_records: int = 0
    disk_bytes: int = 0
    damaged: int = 0  # Records on disk that had to be read from the source again.

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add_source(self, records: int, tensors: Sequence[tf.Tensor]) -> None:
        """So many records came from the source."""
        read = bytes_of(tensors)
        with self._lock:
            self.source_records += records
            self.source_bytes += read

    def add_disk(self, records: int, tensors: Sequence[tf.Tensor]) -> None:
        """So many records came from disk."""
        read = bytes_of(tensors)
        with self._lock:
            self.disk_records += records
            self.disk_bytes += read

    def add_damaged(self, records: int) -> None:
        """So many records on disk were damaged or gone."""
        with self._lock:
            self.damaged += records


def bytes_of(tensors: Sequence[tf.Tensor]) -> int:
    """The bytes of numbers and texts."""
    return sum(
        int(tf.reduce_sum(tf.strings.length(tensor)))
        if tensor.dtype == tf.string
        else tensor.dtype.size * int(tf.size(tensor))
        for tensor in tensors
    )
