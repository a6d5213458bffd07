# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Files in a folder for each class, by number."""

import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdear.data.record_source import fingerprint_of, modification_times_of
from tfdear.engine import library


class ImageFolder:
    """The files of a folder that has a folder for each class, as a source of a `DataCache`.

    Use it for photographs as ImageNet has them. A raw record is a pair: the file's contents, a
    scalar string, and its label, int64: the place of its class.

    Args:
        directory: The folder, in any file system of TensorFlow's.
        classes: Names of folders in it, in the order of their labels. Defaults to None: all of
            them, in the order of their names.

    Raises:
        ValueError: There are no classes, or one has no files.

    Example:

    >>> import pathlib, tempfile
    >>> directory = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (directory / name).mkdir()
    ...     _ = (directory / name / "1.jpeg").write_bytes(name.encode())
    >>> folder = tfdear.data.ImageFolder(directory)
    >>> len(folder), folder.classes
    (2, ['cat', 'dog'])
    """

    def __init__(self, directory: str | os.PathLike, classes: Sequence[str] | None = None):
        directory = os.fspath(directory)
        if not tf.io.gfile.isdir(directory):
            raise ValueError(f"`directory` must be a folder. Received: {directory!r}")
        if classes is None:
            entries = (name.rstrip("/") for name in tf.io.gfile.listdir(directory))
            classes = sorted(
                name for name in entries if tf.io.gfile.isdir(os.path.join(directory, name))
            )
        self.classes = list(classes)
        if not self.classes:
            raise ValueError(f"{directory!r} has no folders, of which each would be a class.")
        self._folders = [os.path.join(directory, name) for name in self.classes]
        self._paths: list[str] = []
        labels: list[int] = []
        for label, (name, folder) in enumerate(zip(self.classes, self._folders, strict=True)):
            if not tf.io.gfile.isdir(folder):
                raise ValueError(f"There is no folder {folder!r} for class {name!r}.")
            files = sorted(
                path
                for path in (os.path.join(folder, file) for file in tf.io.gfile.listdir(folder))
                if not tf.io.gfile.isdir(path)
            )
            if not files:
                raise ValueError(f"The folder of class {name!r}, {folder!r}, has no files.")
            self._paths += files
            labels += [label] * len(files)
        self._labels = np.array(labels, np.int64)

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def element_spec(self) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """A scalar string and a scalar int64."""
        return tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)

    def read(self, numbers: np.ndarray) -> tuple[list[tf.Tensor], tf.Tensor]:
        """As `RecordSource.read`."""
        contents, errors = library.load().dear_read_files(
            [self._paths[number] for number in numbers.tolist()]
        )
        return [contents, tf.constant(self._labels[numbers])], errors

    @property
    def records_per_read(self) -> int:
        """A file each."""
        return 1

    def fingerprint(self) -> str:
        """As `RecordSource.fingerprint`: of names."""
        return fingerprint_of(*self.classes, *self._paths)

    def modification_times(self) -> np.ndarray:
        """As `RecordSource.modification_times`: of the folders, of which there are fewer."""
        return modification_times_of(self._folders)

    def name(self, number: int) -> str:
        """The path of a file."""
        return self._paths[number]
