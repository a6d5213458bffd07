# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Files in a folder for each class, by number."""

import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from tfdear.data import shared_listing
from tfdear.data.record_source import fingerprint_of
from tfdear.data.shared_listing import Found, ListedSource, Share, array_of, texts_of
from tfdear.data.source_files import SourceFiles, look_at, several_times
from tfdear.engine import library

# Of files that TensorFlow decodes, in small letters.
_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")


class ImageFolder(ListedSource):
    """The files of a folder that has a folder for each class, as a source of a `DataCache`.

    Use it for photographs as ImageNet has them. One process lists the files when the object is
    made; the ranks of a job do so together, each for some of the classes, when they make the
    `DataCache`. A raw record is a pair: the file's contents, a scalar string, and its label, int64:
    the place of its class.

    Images are files that lie directly in a class's folder and whose names end in `.bmp`, `.gif`,
    `.jpeg`, `.jpg`, `.png` or `.webp`, in letters of any case. What begins with a dot is passed
    over, folders and files, as are other files, with a warning.

    Args:
        directory: The folder, in any file system of TensorFlow's.
        classes: Names of folders in it, in the order of their labels; there may be no images of
            some. Defaults to None: all folders, in the order of their names, each with images.

    Raises:
        ValueError: There are no classes, no images of one, or one twice; a class's folder has
            folders with files of their own; or a file cannot be looked at.

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
        self._directory = os.fspath(directory)
        self._chosen = None if classes is None else list(classes)
        if self._chosen is not None and len(set(self._chosen)) < len(self._chosen):
            raise ValueError(f"`classes` must name each class once. Received: {classes!r}")
        self._classes: list[str] = []
        self._files = SourceFiles.joined([])
        self._labels: np.ndarray | None = None
        if not shared_listing.has_several_ranks():
            self.list_files(shared_listing.alone)

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of their labels."""
        self._require()
        return self._classes

    @property
    def is_listed(self) -> bool:
        """As `ListedSource.is_listed`."""
        return self._labels is not None

    def arguments(self) -> list[str]:
        """As `ListedSource.arguments`: the folder, and the classes that were chosen."""
        return [self._directory, str(self._chosen)]

    def list_files(self, share: Share) -> None:
        """As `ListedSource.list_files`: a part is a class."""
        if self._chosen is None:
            (found,) = share(1, lambda part: {"names": array_of(_folders_in(self._directory))})
            self._classes = texts_of(found["names"])
        else:
            self._classes = self._chosen
        if not self._classes:
            raise ValueError(f"{self._directory!r} has no folders, of which each would be a class.")
        found_files = share(
            len(self._classes), lambda part: _images_of(self._directory, self._classes[part])
        )
        counts = [len(part["sizes"]) for part in found_files]
        if without := [name for name, n in zip(self._classes, counts, strict=True) if not n]:
            self._check_empty(without)
        if others := [path for part in found_files for path in texts_of(part["others"])]:
            logging.warning(
                "tfdear: ImageFolder: %d files of %s are passed over, since their names end in "
                "none of %s. The first is %s",
                len(others),
                self._directory,
                ", ".join(_ENDINGS),
                others[0],
            )
        self._files = SourceFiles.joined(found_files)
        self._labels = np.repeat(np.arange(len(counts)), counts)

    def _check_empty(self, without: list[str]) -> None:
        """Refuses classes without images, unless they were asked for beside others."""
        if self._chosen is None or len(without) == len(self._classes):
            raise ValueError(
                f"{len(without)} of {len(self._classes)} classes have no images: the folder of "
                f"class {without[0]!r} in {self._directory!r} has no file that ends in one of "
                f"{', '.join(_ENDINGS)}. Remove such folders, or say with `classes` which classes "
                "there are."
            )

    def find_records(self, share: Share, kept: np.ndarray | None) -> None:
        """As `ListedSource.find_records`: each file is one."""

    def record_lengths(self) -> None:
        """As `ListedSource.record_lengths`: none."""

    def _require(self) -> np.ndarray:
        """The labels of all files, which are listed now if they have not been."""
        if self._labels is None:
            self.list_files(shared_listing.alone)
        assert self._labels is not None
        return self._labels

    def __len__(self) -> int:
        return len(self._require())

    @property
    def element_spec(self) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """A scalar string and a scalar int64."""
        return tf.TensorSpec([], tf.string), tf.TensorSpec([], tf.int64)

    def read(self, numbers: np.ndarray) -> tuple[list[tf.Tensor], tf.Tensor]:
        """As `RecordSource.read`."""
        labels = self._require()

        def read(rows: np.ndarray) -> tuple[list[tf.Tensor], tf.Tensor]:
            contents, errors = library.load().dear_read_files(
                [self._files.paths[number] for number in numbers[rows].tolist()]
            )
            return [contents, tf.constant(labels[numbers[rows]])], errors

        return self._files.read(numbers, read)

    @property
    def records_per_read(self) -> int:
        """A file each."""
        return 1

    def fingerprint(self) -> str:
        """As `RecordSource.fingerprint`: of names and sizes."""
        self._require()
        return fingerprint_of(*self._classes, *self._files.paths, self._files.sizes)

    def modification_times(self) -> np.ndarray:
        """As `RecordSource.modification_times`: of all files."""
        self._require()
        return self._files.times

    def name(self, number: int) -> str:
        """The path of a file."""
        self._require()
        return self._files.paths[number]


def _folders_in(directory: str) -> list[str]:
    if not tf.io.gfile.isdir(directory):
        raise ValueError(f"`directory` must be a folder. Received: {directory!r}")
    return [
        name for name in _names_in(directory) if tf.io.gfile.isdir(os.path.join(directory, name))
    ]


def _names_in(folder: str) -> list[str]:
    """The names that do not begin with a dot, in their order."""
    try:
        entries = several_times(lambda: tf.io.gfile.listdir(folder))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"Names of files must be UTF-8. Received in {folder!r}: {error.object!r}. Rename it."
        ) from error
    return sorted(name.rstrip("/") for name in _shown(entries))


def _shown(names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith(".")]


def _images_of(directory: str, name: str) -> Found:
    """As `look_at`, of a class's images; also `others`, files that are none."""
    folder = os.path.join(directory, name)
    if not tf.io.gfile.isdir(folder):
        raise ValueError(f"There is no folder {folder!r} for class {name!r}.")
    paths = [os.path.join(folder, file) for file in _names_in(folder)]
    found = look_at([path for path in paths if path.lower().endswith(_ENDINGS)])
    images = set(texts_of(found["paths"]))
    others = []
    for path in paths:
        if path in images:
            continue
        if not tf.io.gfile.isdir(path):
            others.append(path)
        elif any(_shown(files) for _, _, files in tf.io.gfile.walk(path)):
            raise ValueError(
                f"Images must lie directly in the folder of their class, but {path!r}, in that of "
                f"class {name!r}, is a folder with files. Move them to {folder!r}, or elsewhere."
            )
    return {**found, "others": array_of(others)}
