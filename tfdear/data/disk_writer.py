# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Writes records into files of a folder, and the index of those that a rank wrote."""

import os
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from tfdear.data import disk_record

# What a TFRecord file has around a record.
FRAME_BYTES = 16
# Of a record: which it is, and where it lies.
PLACE = np.dtype([("number", np.int64), ("begin", np.int64), ("end", np.int64), ("part", np.int32)])
_MOST_PART_BYTES = 1 << 30
# So much may be written before the index is. Where records are read again before, the index may
# lack a small part of them: it is written as a whole each time.
_INDEX_EVERY = 64 << 20
_INDEX_LACKS = 1 / 8


def load_index(path: pathlib.Path) -> np.ndarray | None:
    """The places that an index has, of dtype `PLACE`; None: it is no index."""
    try:
        places = np.load(path, allow_pickle=False)
    except Exception:  # NumPy has no error for damaged files: what is parsed raises its own.
        return None
    return places if isinstance(places, np.ndarray) and places.dtype == PLACE else None


class RecordWriter:
    """Writes records into files, and the index of those that it wrote; for one thread at a time.

    Args:
        folder: For both.
        number: Of the writer: its files have names of their own.
        most_bytes: That it writes, beside those which are there.
    """

    def __init__(self, folder: pathlib.Path, number: int, most_bytes: int):
        self._folder, self._name = folder, f"{number:03d}"
        self._most_bytes, self._bytes = most_bytes, 0
        self._index = np.zeros(0, PLACE)
        self._part = -1
        self._file: tf.io.TFRecordWriter | None = None
        self._end = 0  # Of the file.
        self._pending: list[tuple[int, int, int, int]] = []
        self._pending_bytes = 0
        self._is_flushed = True
        self.index_path = folder / f"index-{self._name}.npy"
        if self.index_path.exists():
            found = load_index(self.index_path)
            if found is not None:
                self._index = found
        for part in folder.glob(f"part-{self._name}-*.tfrecord"):
            self._part = max(self._part, int(part.stem.rsplit("-", 1)[1]))

    @property
    def path(self) -> pathlib.Path:
        """The file that is written."""
        return self._path(self._part)

    def adopt(self, path: pathlib.Path, places: np.ndarray, end: int) -> None:
        """Takes records into the index that were found in one of its files, up to its end.

        What lies behind is cut off. Files of other ranks are left to these.
        """
        _, name, part = path.stem.split("-")
        if name != self._name:
            return
        places = places.copy()
        places["part"] = int(part)
        self._index = np.concatenate([self._index, places])
        if end < path.stat().st_size:
            os.truncate(path, end)

    def write(self, number: int, arrays: list[Any]) -> tuple[pathlib.Path, np.ndarray] | None:
        """Writes a record; returns its file and its place there, or None if there is no room.

        It can be read when `flush` was called.
        """
        record = disk_record.encode(number, arrays)
        size = len(record) + FRAME_BYTES
        if self._bytes + size > self._most_bytes:
            return None
        if self._file is None or self._end + size > _MOST_PART_BYTES:
            self._write_index()
            self._part += 1
            self._file = tf.io.TFRecordWriter(str(self.path))
            self._end = 0
        self._file.write(record)
        self._is_flushed = False
        place = (number, self._end, self._end + size, self._part)
        self._pending.append(place)
        self._pending_bytes += size
        self._end += size
        self._bytes += size
        if self._pending_bytes >= _INDEX_EVERY:
            self._write_index()
        return self.path, np.array([place], PLACE)

    def flush(self) -> None:
        """Lets what was written be read by this process, and by others, for which it is indexed."""
        if self._file is not None and not self._is_flushed:
            self._file.flush()
            self._is_flushed = True
        if len(self._pending) > _INDEX_LACKS * len(self._index):
            self._write_index()

    def close(self) -> None:
        """Ends the last file, and writes the index."""
        self._write_index()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _path(self, part: int) -> pathlib.Path:
        return self._folder / f"part-{self._name}-{part:04d}.tfrecord"

    def _write_index(self) -> None:
        if self._file is None or not self._pending:
            return
        self._file.flush()
        self._is_flushed = True
        places = np.array(self._pending, PLACE)
        self._pending, self._pending_bytes = [], 0
        self._index = np.concatenate([self._index, places])
        _synchronize(self.path)
        aside = self._folder / f"index-{self._name}.new"
        with aside.open("wb") as file:
            np.save(file, self._index, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.index_path)


def _synchronize(path: pathlib.Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
