# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Raw records in ArrayRecord files, by number."""

import bisect
import collections
import math
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdear.base import descriptors, extras
from tfdear.data import shared_listing
from tfdear.data.pattern_files import PatternFiles
from tfdear.data.shared_listing import Found, Share

# What shared file systems deliver at once.
_READ_BYTES = 5 << 20
# Records are read one here, one there.
_OPTIONS = "readahead_buffer_size:0"
_MOST_OPEN = 256  # Files at a time.


class ArrayRecordFiles(PatternFiles):
    """The records of ArrayRecord files, as a source of a `DataCache`.

    Use it for data that was written for Grain or TFDS. Records are read by the package
    `array_record` (`pip install "tfdear[array_record]"`), which knows local paths alone. A raw
    record is a scalar string.

    Args:
        patterns: Paths of files, a string or several; may contain `*`, `?` and `[...]`, but where
            there is a file of just this name. The files of all patterns are taken in the order of
            their names.

    Raises:
        ValueError: No file matches a pattern, or one is no ArrayRecord file.
        ModuleNotFoundError: `array_record` is not installed.

    Example:

    >>> import tempfile
    >>> from array_record.python import array_record_module
    >>> path = f"{tempfile.mkdtemp()}/numbers.array_record"
    >>> writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
    >>> for number in range(3):
    ...     writer.write(str(number).encode())
    >>> writer.close()
    >>> len(tfdear.data.ArrayRecordFiles(path))
    3
    """

    def __init__(self, patterns: str | os.PathLike | Sequence[str | os.PathLike]):
        with extras.required("array_record"):
            from array_record.python import array_record_module
        self._open = array_record_module.ArrayRecordReader
        # The number of the first record of each file, and of all records.
        self._begins: np.ndarray | None = None
        # Of files that are open, the last one that was used last.
        self._readers: collections.OrderedDict[int, Any] = collections.OrderedDict()
        self._lock = threading.Lock()
        super().__init__(patterns)

    @property
    def is_listed(self) -> bool:
        """As `ListedSource.is_listed`."""
        return self._begins is not None

    def find_records(self, share: Share, kept: np.ndarray | None) -> None:
        """As `ListedSource.find_records`: a part is a file, which says how many it has."""
        del kept

        def find(file: int) -> Found:
            return {"records": np.array([self._new_reader(file).num_records()], np.int64)}

        found = share(len(self.files().paths), find)
        self._begins = np.cumsum([0, *(int(part["records"][0]) for part in found)])

    def record_lengths(self) -> None:
        """As `ListedSource.record_lengths`: files have an index of their own."""

    def _starts(self) -> np.ndarray:
        if self._begins is None:
            self.find_records(shared_listing.alone, None)
        assert self._begins is not None
        return self._begins

    def __len__(self) -> int:
        return int(self._starts()[-1])

    def read(self, numbers: np.ndarray) -> tuple[list[tf.Tensor], tf.Tensor]:
        """As `RecordSource.read`."""
        begins = self._starts()
        files = np.searchsorted(begins, numbers, "right") - 1
        places = numbers - begins[files]

        def read(rows: np.ndarray) -> tuple[list[tf.Tensor], tf.Tensor]:
            records = np.full(len(rows), b"", object)
            errors = np.full(len(rows), b"", object)
            for file in np.unique(files[rows]).tolist():
                of_file = np.flatnonzero(files[rows] == file)
                records[of_file], errors[of_file] = self._read(file, places[rows[of_file]].tolist())
            return [tf.constant(records, tf.string)], tf.constant(errors, tf.string)

        return self.files().read(files, read)

    def _read(self, file: int, places: list[int]) -> tuple[list[bytes], list[bytes]]:
        """Records of a file at once, or one by one if one of them cannot be read."""
        try:
            return self._reader(file).read(places), [b""] * len(places)
        except OSError as error:  # It is there, or not, but cannot be opened now.
            code = "NOT_FOUND" if isinstance(error, FileNotFoundError) else "UNAVAILABLE"
            return [b""] * len(places), [f"{code}: {error}".encode()] * len(places)
        except (RuntimeError, ValueError) as error:
            if len(places) == 1:
                with self._lock:
                    self._readers.pop(file, None)
                code = "DATA_LOSS" if os.path.exists(self.files().paths[file]) else "NOT_FOUND"
                return [b""], [f"{code}: {error}".encode()]
        each = [self._read(file, [place]) for place in places]
        return [records[0] for records, _ in each], [errors[0] for _, errors in each]

    def _reader(self, file: int) -> Any:
        with self._lock:
            reader = self._readers.get(file)
            if reader is not None:
                self._readers.move_to_end(file)
                return reader
        reader = self._new_reader(file)
        with self._lock:
            self._readers[file] = reader
            # Whoever still reads from one keeps it.
            while len(self._readers) > min(_MOST_OPEN, descriptors.limit() // 4):
                self._readers.popitem(last=False)
        return reader

    def _new_reader(self, file: int) -> Any:
        path = self.files().paths[file]
        if "://" in path:
            raise ValueError(f"ArrayRecord files are read from local paths. Received: {path!r}")
        reader = self._open(path, _OPTIONS)
        if not reader.ok():
            with open(path, "rb"):  # Its own error tells what the reader does not.
                raise ValueError(f"{path} is cut off, or no ArrayRecord file.")
        return reader

    @property
    def records_per_read(self) -> int:
        """As many as have five mebibytes."""
        total = int(self.files().sizes.sum())
        return math.ceil(_READ_BYTES * len(self) / max(total, 1)) or 1

    def name(self, number: int) -> str:
        """The path of a record's file, and the record's place in it."""
        file = bisect.bisect_right(self._starts(), number) - 1
        return f"{self.files().paths[file]}, record {number - self._starts()[file]}"
