# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Raw records that were read once, in files on a local disk.

[Note: records on disk]
A folder belongs to one source, as its records were at one time: its name is a checksum of what
tells them apart. In it are TFRecord files of `tf.train.Example`s, each with the number of a record
and its tensors, and an index for each rank that wrote some; it is written aside and then renamed.
Records behind the last index, of a job that was killed, are found again by their numbers; what is
no whole record is cut off. One job writes at a time: it holds a lock (flock) that ends with it.
Others read what they find. A rank knows the place of what it wrote at once. What other ranks of the
node wrote it finds in their indices, which they write in the middle of an epoch, and when they read
again what they wrote; it looks at those that changed whenever it lacks a record.
"""

import contextlib
import pathlib
import threading
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import tensorflow as tf
from absl import logging

from tfdear.data import disk_record
from tfdear.data.disk_writer import (
    FRAME_BYTES,
    PLACE,
    RecordWriter,
    load_index,
)
from tfdear.data.read_statistics import ReadStatistics
from tfdear.data.record_scan import whole_records
from tfdear.data.record_source import RecordSource
from tfdear.engine import library


class DiskCache:
    """The records of a source; those that were read before come from a folder.

    Args:
        source: Where records come from otherwise.
        folder: As `disk_folder.open_folder` makes it.
        writer: The number of this rank among those that write; None: it only reads.
        most_bytes: Of the records that this rank writes, beside those which are there.
        held: The lock, which this object keeps.
        verify: Whether checksums of records are compared.

    Raises:
        ValueError: Records have tensors that cannot be kept.
    """

    def __init__(
        self,
        source: RecordSource,
        folder: pathlib.Path,
        writer: int | None,
        most_bytes: int,
        held: BinaryIO | None = None,
        *,
        verify: bool = True,
    ):
        self._source, self._folder = source, folder
        self._held = held
        self._specs = tf.nest.flatten(source.element_spec)
        disk_record.check(self._specs)
        self._lock = threading.Lock()
        self._verify = verify
        self.statistics = ReadStatistics()
        self._paths: list[str] = []
        # Of each index that was loaded, which file it was.
        self._loaded: dict[pathlib.Path, tuple[int, int]] = {}
        # Where each record is; -1: not here. With the lock, as are the writer, paths and indices.
        self._begins = np.full(len(source), -1, np.int64)
        self._ends = np.zeros(len(source), np.int64)
        self._parts = np.zeros(len(source), np.int64)
        self._warned = False
        self._writer = None if writer is None else RecordWriter(folder, writer, most_bytes)
        self._load()

    def __len__(self) -> int:
        return len(self._source)

    @property
    def element_spec(self) -> object:
        """That of the source."""
        return self._source.element_spec

    @property
    def records_on_disk(self) -> int:
        """Records that need not be read from the source."""
        return int((self._begins >= 0).sum())

    @property
    def records_per_read(self) -> int:
        """As of the source."""
        return self._source.records_per_read

    def fingerprint(self) -> str:
        """That of the source."""
        return self._source.fingerprint()

    def modification_times(self) -> np.ndarray:
        """Those of the source."""
        return self._source.modification_times()

    def name(self, number: int) -> str:
        """What the source calls a record."""
        return self._source.name(number)

    def read(self, numbers: np.ndarray) -> tuple[list[tf.Tensor], tf.Tensor]:
        """As `RecordSource.read`."""
        places, tensors = self._read_from_disk(numbers)
        rest = np.setdiff1d(np.arange(len(numbers)), places)
        errors = np.full(len(numbers), b"", object)
        parts = [tensors] if len(places) else []
        if len(rest):
            raw, failures = self._source.read(numbers[rest])
            errors[rest] = failures.numpy()
            read = np.flatnonzero(errors[rest] == b"")
            self._write(numbers[rest[read]], [tf.gather(tensor, read) for tensor in raw])
            parts.append(raw)
            self.statistics.add_source(len(read), raw)
        order = np.argsort(np.concatenate([places, rest]).astype(np.int64))
        joined = [tf.gather(tf.concat(pieces, 0), order) for pieces in zip(*parts, strict=True)]
        return joined, tf.constant(errors, tf.string)

    def close(self) -> None:
        """Writes the index of what was written; records are only read from now on."""
        with self._lock:
            if self._writer is not None:
                with self._writing() as writer:
                    writer.close()
                self._writer = None
            if self._held is not None:
                self._held.close()

    def _load(self) -> None:
        """Finds the records that the folder has."""
        self._load_indices()
        for path in sorted(self._folder.glob("part-*.tfrecord")):
            self._take_up(path)

    def _load_indices(self) -> None:
        """Adds the records of indices that are new, or others than before."""
        for path in sorted(self._folder.glob("index-*.npy")):
            try:
                found = path.stat()
            except OSError:  # It was there just now: somebody removes the folder.
                continue
            state = found.st_ino, found.st_mtime_ns
            if self._loaded.get(path) == state:
                continue
            is_own = self._writer is not None and path == self._writer.index_path
            if is_own and path in self._loaded:
                continue  # What is in it is known.
            self._loaded[path] = state
            places = load_index(path)
            if places is None:
                self._warn(f"{path} is no index; its records are looked for in their files")
                continue
            writer = path.stem.removeprefix("index-")
            for part in np.unique(places["part"]).tolist():
                self._add(self._path(writer, part), places[places["part"] == part])

    def _path(self, writer: str, part: int) -> pathlib.Path:
        return self._folder / f"part-{writer}-{part:04d}.tfrecord"

    def _add(self, path: pathlib.Path, places: np.ndarray) -> None:
        """Adds the records of a file, as far as they lie in it."""
        size = path.stat().st_size if path.exists() else 0
        fits = (
            (places["number"] >= 0)
            & (places["number"] < len(self._begins))
            & (places["begin"] >= 0)
            & (places["begin"] + FRAME_BYTES <= places["end"])
            & (places["end"] <= size)
        )
        if not fits.all():
            self._warn(f"{path} lacks {int((~fits).sum())} records of its index")
        self._know(path, places[fits])

    def _know(self, path: pathlib.Path, places: np.ndarray) -> None:
        if str(path) not in self._paths:
            self._paths.append(str(path))
        self._begins[places["number"]] = places["begin"]
        self._ends[places["number"]] = places["end"]
        self._parts[places["number"]] = self._paths.index(str(path))

    def _take_up(self, path: pathlib.Path) -> None:
        """Adds whole records behind the last one of the index, and cuts off what follows them."""
        end = self._end_of_known(path)
        places = np.zeros(0, PLACE)
        for records, bounds in whole_records(path, end):
            found = np.zeros(len(records), PLACE)
            found["number"], _ = disk_record.decode(records, self._specs)
            found["begin"], found["end"] = bounds[:-1], bounds[1:]
            places = np.concatenate([places, found])
            end = int(bounds[-1])
        self._add(path, places)
        if self._writer is not None:
            self._writer.adopt(path, places, end)

    def _end_of_known(self, path: pathlib.Path) -> int:
        """Where the last record of a file ends that an index names."""
        if str(path) not in self._paths:
            return 0
        known = (self._begins >= 0) & (self._parts == self._paths.index(str(path)))
        return int(self._ends[known].max(initial=0))

    def _read_from_disk(self, numbers: np.ndarray) -> tuple[np.ndarray, list[tf.Tensor]]:
        """The places in `numbers` of records that could be read, and their tensors."""
        with self._lock:
            if (self._begins[numbers] < 0).any():
                self._load_indices()
            on_disk = np.flatnonzero(self._begins[numbers] >= 0)
            if len(on_disk) and self._writer is not None:
                with self._writing() as writer:
                    writer.flush()
                on_disk = np.flatnonzero(self._begins[numbers] >= 0)
            wanted = numbers[on_disk]
            begins, ends, parts = self._begins[wanted], self._ends[wanted], self._parts[wanted]
            paths = list(self._paths)
        if not len(on_disk):
            return on_disk, []
        records, errors = library.load().dear_read_records(
            paths, parts, begins, ends, verify=self._verify
        )
        good = np.flatnonzero(errors.numpy() == b"")
        found, tensors = disk_record.decode(tf.gather(records, good), self._specs)
        right = found == wanted[good]
        if (bad := np.setdiff1d(np.arange(len(wanted)), good[right])).size:
            first = bad[0]
            self._warn(
                f"{paths[parts[first]]}, offset {begins[first]}: {len(bad)} records are damaged or "
                "gone"
            )
            with self._lock:
                self._begins[wanted[bad]] = -1
            self.statistics.add_damaged(len(bad))
            tensors = [tf.boolean_mask(tensor, right) for tensor in tensors]
        self.statistics.add_disk(int(right.sum()), tensors)
        return on_disk[good][right], tensors

    def _write(self, numbers: np.ndarray, raw: list[tf.Tensor]) -> None:
        arrays = [tensor.numpy() for tensor in raw]
        for row, number in enumerate(numbers.tolist()):
            with self._lock:  # For each, so that who reads need not wait for all.
                if self._writer is None:
                    return
                if self._begins[number] < 0:
                    with self._writing() as writer:
                        written = writer.write(number, [array[row] for array in arrays])
                        if written is not None:
                            self._know(*written)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[RecordWriter]:
        """The writer; if it fails, nothing more is written."""
        writer = self._writer
        assert writer is not None
        try:
            yield writer
        except (OSError, tf.errors.OpError) as error:
            self._warn(f"nothing more is written into {self._folder}: {error}")
            self._writer = None
            path = writer.path
            if str(path) in self._paths:
                # What did not get as far as the file is not there.
                size = path.stat().st_size if path.exists() else 0
                of_file = self._parts == self._paths.index(str(path))
                self._begins[of_file & (self._ends > size)] = -1

    def _warn(self, message: str) -> None:
        if not self._warned:
            logging.warning(
                "tfdear: DataCache on disk: %s. Such records are read from their source; further "
                "cases are counted, not told.",
                message,
            )
        self._warned = True
