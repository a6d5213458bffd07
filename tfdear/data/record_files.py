# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Raw records in TFRecord files, by number."""

import bisect
import math
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdear.data.record_source import fingerprint_of, modification_times_of
from tfdear.engine import library

# What shared file systems deliver at once.
_READ_BYTES = 5 << 20


class TFRecordFiles:
    """The records of TFRecord files, as a source of a `DataCache`.

    Use it for data in TFRecord files, wherever TensorFlow can read them. Where records are is found
    out by reading their lengths alone, when the object is made. A raw record is a scalar string.

    Args:
        patterns: Paths of files, a string or several; may contain `*`, `?` and `[...]`. The files
            of all patterns are taken in the order of their names.

    Raises:
        ValueError: No file matches a pattern.
        tf.errors.DataLossError: A file is cut off, compressed, or not a TFRecord file. Compressed
            files have no random access.

    Example:

    >>> import tempfile
    >>> path = f"{tempfile.mkdtemp()}/numbers.tfrecord"
    >>> with tf.io.TFRecordWriter(path) as writer:
    ...     for number in range(3):
    ...         writer.write(tf.io.serialize_tensor(number).numpy())
    >>> len(tfdear.data.TFRecordFiles(path))
    3
    """

    def __init__(self, patterns: str | os.PathLike | Sequence[str | os.PathLike]):
        self._paths = matching_files(patterns)
        self._path_tensor = tf.constant(self._paths)
        operations = library.load()
        self._offsets = [
            operations.dear_index_records(path).numpy().astype(np.int64) for path in self._paths
        ]
        # The number of the first record of each file, and of all records.
        self._begins = np.cumsum([0, *(len(offsets) - 1 for offsets in self._offsets)])

    def __len__(self) -> int:
        return int(self._begins[-1])

    @property
    def element_spec(self) -> tf.TensorSpec:
        """A scalar string."""
        return tf.TensorSpec([], tf.string)

    def read(self, numbers: np.ndarray) -> tuple[list[tf.Tensor], tf.Tensor]:
        """As `RecordSource.read`."""
        files = np.searchsorted(self._begins, numbers, "right") - 1
        places = numbers - self._begins[files]
        pairs = list(zip(files.tolist(), places.tolist(), strict=True))
        begins, ends = (
            np.array([self._offsets[file][place + behind] for file, place in pairs], np.int64)
            for behind in (0, 1)
        )
        records, errors = library.load().dear_read_records(self._path_tensor, files, begins, ends)
        return [records], errors

    @property
    def records_per_read(self) -> int:
        """As many as have four mebibytes."""
        total = sum(int(offsets[-1]) for offsets in self._offsets)
        return math.ceil(_READ_BYTES * len(self) / max(total, 1)) or 1

    def fingerprint(self) -> str:
        """As `RecordSource.fingerprint`: of names, and of where their records are."""
        return fingerprint_of(*self._paths, *self._offsets)

    def modification_times(self) -> np.ndarray:
        """As `RecordSource.modification_times`: of all files."""
        return modification_times_of(self._paths)

    def name(self, number: int) -> str:
        """The path of a record's file, and the record's place in it."""
        file = bisect.bisect_right(self._begins, number) - 1
        return f"{self._paths[file]}, record {number - self._begins[file]}"


def matching_files(patterns: str | os.PathLike | Sequence[str | os.PathLike]) -> list[str]:
    """The files that match some patterns, in the order of their names.

    Raises:
        ValueError: No file matches a pattern.
    """
    if isinstance(patterns, (str, os.PathLike)):
        patterns = [patterns]
    found: set[str] = set()
    for path in patterns:
        pattern = os.fspath(path)
        matches = tf.io.gfile.glob(pattern)
        if not matches:
            raise ValueError(
                f"No file matches {pattern!r}. Check the path; relative ones start at "
                f"{os.getcwd()!r}."
            )
        found.update(matches)
    if not found:
        raise ValueError("`patterns` must name files. Received: no pattern")
    return sorted(found)
