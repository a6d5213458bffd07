# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The files of a source as they were when they were listed, and how they are read."""

import dataclasses
import datetime
import os
import stat
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import tensorflow as tf

from tfdear.data.shared_listing import Found, array_of, texts_of

_Result = TypeVar("_Result")
# Reads the records in these rows of what is asked for: tensors, and why some have not been read.
Read: TypeAlias = Callable[[np.ndarray], tuple[list[tf.Tensor], tf.Tensor]]

# What fails once on a shared file system may do so for a moment: it is read again after so long.
_PAUSES = (0.1, 0.4)
_CHANGED = (
    "FAILED_PRECONDITION: {} was changed while the job was running, or is another file on this "
    "node: it has {} bytes of {}, and had {} bytes of {} when it was listed. Files must stay as "
    "they are as long as a cache reads them; copies on several nodes must have the same times (cp "
    "--preserve=timestamps)."
)


@dataclasses.dataclass(frozen=True, eq=False)
class SourceFiles:
    """Files with their sizes and the times of their last changes, in bytes and nanoseconds."""

    paths: list[str]
    sizes: np.ndarray
    times: np.ndarray

    @classmethod
    def joined(cls, found: Sequence[Found]) -> "SourceFiles":
        """Of what `look_at` found, by parts, in their order."""
        paths = [path for part in found for path in texts_of(part["paths"])]
        sizes, times = (
            np.concatenate([np.zeros(0, np.int64), *(part[name] for part in found)])
            for name in ("sizes", "times")
        )
        return cls(paths, sizes, times)

    def sorted(self) -> "SourceFiles":
        """In the order of paths, each of them once."""
        places = {path: place for place, path in enumerate(self.paths)}
        paths = sorted(places)
        order = np.array([places[path] for path in paths], np.int64)
        return SourceFiles(paths, self.sizes[order], self.times[order])

    def read(self, files: np.ndarray, read: Read) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Reads records of these files, what fails a few times; as `RecordSource.read`.

        A file that is no longer as it was listed is an error of its records, whatever they have.
        """
        tensors, failures = read(np.arange(len(files)))
        errors = failures.numpy()
        for pause in _PAUSES:
            failed = np.flatnonzero(errors != b"")
            again = failed[~np.isin(files[failed], list(self.changes(files[failed])))]
            if not len(again):
                break
            time.sleep(pause)
            more, failures = read(again)
            order = np.arange(len(files))
            order[again] = len(files) + np.arange(len(again))
            tensors = [
                tf.gather(tf.concat([old, new], 0), order)
                for old, new in zip(tensors, more, strict=True)
            ]
            errors[again] = failures.numpy()
        for file, reason in self.changes(files).items():
            errors[files == file] = reason
        return tensors, tf.constant(errors, tf.string)

    def changes(self, files: np.ndarray) -> dict[int, str]:
        """Which files are no longer as they were, and how; one that is gone is none of them."""
        changes = {}
        for file in np.unique(files).tolist():
            path, size, changed = self.paths[file], int(self.sizes[file]), int(self.times[file])
            try:
                _, *found = _stat(path)
            except (OSError, tf.errors.OpError):
                continue  # Who reads it hears of it.
            if found != [size, changed]:
                changes[file] = _CHANGED.format(
                    path, found[0], _date(found[1]), size, _date(changed)
                )
        return changes


def look_at(paths: Sequence[str]) -> Found:
    """What tells files from others of the same names; folders among them are left out.

    Raises:
        ValueError: A file is not there, although its name is.
    """
    try:
        seen = [(path, *_stat(path)) for path in paths]
    except FileNotFoundError as error:
        raise ValueError(
            f"{error.filename!r} is listed, but there is no such file. It may be a link to one "
            "that is gone, or was removed just now. Remove the link, or bring the file back."
        ) from error
    files = [(path, size, changed) for path, is_folder, size, changed in seen if not is_folder]
    return {
        "paths": array_of([path for path, _, _ in files]),
        "sizes": np.array([size for _, size, _ in files], np.int64),
        "times": np.array([changed for _, _, changed in files], np.int64),
    }


def several_times(call: Callable[[], _Result]) -> _Result:
    """The result of a call that reads, which is made again if it fails."""
    for pause in _PAUSES:
        try:
            return call()
        except tf.errors.OpError:
            time.sleep(pause)
    return call()


def _stat(path: str) -> tuple[bool, int, int]:
    """Whether it is a folder, its size, and when it was changed last."""
    if "://" not in path:  # TensorFlow has whole seconds of local files.
        found = os.stat(path)
        return stat.S_ISDIR(found.st_mode), found.st_size, found.st_mtime_ns
    remote = tf.io.gfile.stat(path)
    return remote.is_directory, remote.length, remote.mtime_nsec


def _date(nanoseconds: int) -> str:
    return datetime.datetime.fromtimestamp(nanoseconds / 1e9).isoformat(" ")
