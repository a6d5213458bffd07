# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The files of a source that match patterns."""

import os
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdear.data import shared_listing
from tfdear.data.record_source import fingerprint_of
from tfdear.data.shared_listing import Found, ListedSource, Share
from tfdear.data.source_files import SourceFiles, look_at, several_times


class PatternFiles(ListedSource):
    """A source of files that match patterns, in the order of their names."""

    def __init__(self, patterns: str | os.PathLike | Sequence[str | os.PathLike]):
        if isinstance(patterns, (str, os.PathLike)):
            patterns = [patterns]
        self._patterns = [os.fspath(pattern) for pattern in patterns]
        if not self._patterns:
            raise ValueError("`patterns` must name files. Received: no pattern")
        self._files: SourceFiles | None = None
        if not shared_listing.has_several_ranks():
            self.list_files(shared_listing.alone)

    def arguments(self) -> list[str]:
        """As `ListedSource.arguments`: the patterns."""
        return self._patterns

    def list_files(self, share: Share) -> None:
        """As `ListedSource.list_files`: a part is what matches a pattern."""
        found = share(len(self._patterns), lambda part: _matching(self._patterns[part]))
        self._files = SourceFiles.joined(found).sorted()

    def files(self) -> SourceFiles:
        """The files, which are listed now if they have not been."""
        if self._files is None:
            self.list_files(shared_listing.alone)
        assert self._files is not None
        return self._files

    @property
    def element_spec(self) -> tf.TensorSpec:
        """A scalar string."""
        return tf.TensorSpec([], tf.string)

    def fingerprint(self) -> str:
        """As `RecordSource.fingerprint`: of names and sizes, so that no file is read for it."""
        files = self.files()
        return fingerprint_of(*files.paths, files.sizes)

    def modification_times(self) -> np.ndarray:
        """As `RecordSource.modification_times`: of all files."""
        return self.files().times


def _matching(pattern: str) -> Found:
    # A file of this very name is meant, also where its name would match others.
    exists = several_times(lambda: tf.io.gfile.exists(pattern))
    paths = [pattern] if exists else several_times(lambda: tf.io.gfile.glob(pattern))
    found = look_at(paths)
    if len(found["sizes"]):
        return found
    if exists:
        raise ValueError(
            f"{pattern!r} is a folder. Name the files in it, such as "
            f"{os.path.join(pattern, '*.tfrecord')!r}."
        )
    raise ValueError(
        f"No file matches {pattern!r}. Check the path; relative ones start at {os.getcwd()!r}, and "
        "names in a pattern that have *, ? or [ in them are written as by `glob.escape`."
    )
