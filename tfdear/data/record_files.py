# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Raw records in TFRecord files, by number."""

import bisect
import math
import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdear.data import shared_listing
from tfdear.data.disk_writer import FRAME_BYTES
from tfdear.data.pattern_files import PatternFiles
from tfdear.data.shared_listing import Found, Share
from tfdear.data.source_files import SourceFiles, several_times
from tfdear.engine import library

# What shared file systems deliver at once.
_READ_BYTES = 5 << 20


class TFRecordFiles(PatternFiles):
    """The records of TFRecord files, as a source of a `DataCache`.

    Use it for data in TFRecord files, wherever TensorFlow can read them. Where records are is found
    out by reading their lengths alone, when a `DataCache` is made: by the ranks of a job together,
    each for some of the files. A raw record is a scalar string.

    Args:
        patterns: Paths of files, a string or several; may contain `*`, `?` and `[...]`, but where
            there is a file of just this name. The files of all patterns are taken in the order of
            their names.

    Raises:
        ValueError: No file matches a pattern.
        tf.errors.DataLossError: A file is cut off, compressed, or not a TFRecord file. Compressed
            files have no random access.

    Under a strategy of several ranks, what makes the cache raises these.

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
        self._offsets: list[np.ndarray] | None = None
        self._begins, self._paths = np.zeros(1, np.int64), tf.zeros([0], tf.string)
        super().__init__(patterns)

    @property
    def is_listed(self) -> bool:
        """As `ListedSource.is_listed`."""
        return self._offsets is not None

    def find_records(self, share: Share, kept: np.ndarray | None) -> None:
        """As `ListedSource.find_records`: a part is a file."""
        files = self.files()
        offsets = None if kept is None else _split(kept, files.sizes)

        def find(file: int) -> Found:
            return {"lengths": np.diff(_index(files, file) if offsets is None else offsets[file])}

        found = share(len(files.paths), find)
        # Of each file, where its records begin, and its end.
        self._offsets = [np.append(0, np.cumsum(part["lengths"])) for part in found]
        # The number of the first record of each file, and of all records.
        self._begins = np.cumsum([0, *(len(part["lengths"]) for part in found)])
        self._paths = tf.constant(files.paths)

    def record_lengths(self) -> np.ndarray:
        """As `ListedSource.record_lengths`."""
        return np.concatenate([np.diff(offsets) for offsets in self._indexed()])

    def _indexed(self) -> list[np.ndarray]:
        """The offsets of each file's records, which are looked for now if they have not been."""
        if self._offsets is None:
            self.find_records(shared_listing.alone, None)
        assert self._offsets is not None
        return self._offsets

    def __len__(self) -> int:
        self._indexed()
        return int(self._begins[-1])

    def read(self, numbers: np.ndarray) -> tuple[list[tf.Tensor], tf.Tensor]:
        """As `RecordSource.read`."""
        offsets = self._indexed()
        files = np.searchsorted(self._begins, numbers, "right") - 1
        places = numbers - self._begins[files]
        pairs = list(zip(files.tolist(), places.tolist(), strict=True))
        begins, ends = (
            np.array([offsets[file][place + behind] for file, place in pairs], np.int64)
            for behind in (0, 1)
        )

        def read(rows: np.ndarray) -> tuple[list[tf.Tensor], tf.Tensor]:
            records, errors = library.load().dear_read_records(
                self._paths, files[rows], begins[rows], ends[rows]
            )
            return [records], errors

        return self.files().read(files, read)

    @property
    def records_per_read(self) -> int:
        """As many as have five mebibytes."""
        total = sum(int(offsets[-1]) for offsets in self._indexed())
        return math.ceil(_READ_BYTES * len(self) / max(total, 1)) or 1

    def name(self, number: int) -> str:
        """The path of a record's file, and the record's place in it."""
        self._indexed()
        file = bisect.bisect_right(self._begins, number) - 1
        return f"{self.files().paths[file]}, record {number - self._begins[file]}"


def _index(files: SourceFiles, file: int) -> np.ndarray:
    operations, path = library.load(), files.paths[file]
    offsets = several_times(lambda: operations.dear_index_records(path).numpy())
    if changes := files.changes(np.array([file])):
        raise ValueError(changes[file])
    return offsets


def _split(lengths: np.ndarray, sizes: np.ndarray) -> list[np.ndarray] | None:
    """Where the records of files of these sizes are, by their lengths; None: they cannot be."""
    ends = np.append(0, np.cumsum(lengths))
    bounds = np.append(0, np.cumsum(sizes))
    places = np.minimum(np.searchsorted(ends, bounds), len(ends) - 1)
    least = int(lengths.min(initial=FRAME_BYTES))
    if least < FRAME_BYTES or places[-1] != len(lengths) or (ends[places] != bounds).any():
        return None
    return [
        ends[first : last + 1] - ends[first]
        for first, last in zip(places[:-1], places[1:], strict=True)
    ]
