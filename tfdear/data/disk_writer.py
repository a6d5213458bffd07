# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Writes records into files of a folder, and the index of those that a rank wrote."""

import os
import pathlib

import numpy as np
import tensorflow as tf

# What a TFRecord file has around a record.
FRAME_BYTES = 16
# Of a record: which it is, and where it lies.
PLACE = np.dtype([("number", np.int64), ("begin", np.int64), ("end", np.int64), ("part", np.int32)])
NUMBER = "number"
_MOST_PART_BYTES = 1 << 30
# So much may be written before the index is.
_INDEX_EVERY = 64 << 20


def feature_of(tensor: int) -> str:
    """What holds a record's tensor in a `tf.train.Example`."""
    return f"tensor_{tensor}"


def load_index(path: pathlib.Path) -> np.ndarray | None:
    """The places that an index has, of dtype `PLACE`; None: it is no index."""
    try:
        places = np.load(path, allow_pickle=False)
    except Exception:  # NumPy has no error for damaged files: what is parsed raises its own.
        return None
    return places if isinstance(places, np.ndarray) and places.dtype == PLACE else None


class RecordWriter:
    """Writes records into files, and the index of those that it wrote."""

    def __init__(self, folder: pathlib.Path, number: int, most_bytes: int):
        self._folder, self._name = folder, f"{number:03d}"
        self._most_bytes, self._bytes = most_bytes, 0
        self._index = np.zeros(0, PLACE)
        self._part = -1
        self._file: tf.io.TFRecordWriter | None = None
        self._end = 0  # Of the file.
        self._pending: list[tuple[int, int, int, int]] = []
        self._pending_bytes = 0
        path = folder / f"index-{self._name}.npy"
        if path.exists():
            found = load_index(path)
            if found is not None:
                self._index = found
        for part in folder.glob(f"part-{self._name}-*.tfrecord"):
            self._part = max(self._part, int(part.stem.rsplit("-", 1)[1]))
            self._bytes += part.stat().st_size

    def adopt(self, path: pathlib.Path, places: np.ndarray) -> None:
        """Takes records into the index that were found in one of its files."""
        _, name, part = path.stem.split("-")
        if name != self._name or not len(places):
            return
        places = places.copy()
        places["part"] = int(part)
        self._index = np.concatenate([self._index, places])

    def write(self, number: int, arrays: list[np.ndarray]) -> dict[pathlib.Path, np.ndarray]:
        """Writes a record if there is room; returns where records are that can be read now."""
        feature = {NUMBER: tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))}
        for place, array in enumerate(arrays):
            content = array if isinstance(array, bytes) else np.asarray(array).tobytes()
            feature[feature_of(place)] = tf.train.Feature(
                bytes_list=tf.train.BytesList(value=[content])
            )
        record = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
        size = len(record) + FRAME_BYTES
        if self._bytes + size > self._most_bytes:
            return {}
        written: dict[pathlib.Path, np.ndarray] = {}
        if self._file is None or self._end + size > _MOST_PART_BYTES:
            written = self._flush()
            self._part += 1
            self._file = tf.io.TFRecordWriter(str(self._path(self._part)))
            self._end = 0
        self._file.write(record)
        self._pending.append((number, self._end, self._end + size, self._part))
        self._pending_bytes += size
        self._end += size
        self._bytes += size
        return self._flush() if self._pending_bytes >= _INDEX_EVERY else written

    def close(self) -> dict[pathlib.Path, np.ndarray]:
        """Ends the last file; as `write`."""
        written = self._flush()
        if self._file is not None:
            self._file.close()
            self._file = None
        return written

    def _path(self, part: int) -> pathlib.Path:
        return self._folder / f"part-{self._name}-{part:04d}.tfrecord"

    def _flush(self) -> dict[pathlib.Path, np.ndarray]:
        if self._file is None or not self._pending:
            return {}
        self._file.flush()
        places = np.array(self._pending, PLACE)
        self._pending, self._pending_bytes = [], 0
        self._index = np.concatenate([self._index, places])
        _synchronize(self._path(self._part))
        aside = self._folder / f"index-{self._name}.new"
        with aside.open("wb") as file:
            np.save(file, self._index, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self._folder / f"index-{self._name}.npy")
        return {self._path(self._part): places}


def _synchronize(path: pathlib.Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
