# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Finds the whole records of a TFRecord file that nobody has an index of."""

import pathlib
import struct
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from tfdear.data.disk_writer import FRAME_BYTES
from tfdear.engine import library

# Records that are read together.
_BLOCK = 1024


def whole_records(path: pathlib.Path, begin: int = 0) -> Iterator[tuple[tf.Tensor, np.ndarray]]:
    """The records from a byte on, up to the first that is damaged or cut off.

    Yields:
        Contents of some records, and where they begin and the last of them ends: one number more.
    """
    bounds = _bounds(path, begin)
    for start in range(0, len(bounds) - 1, _BLOCK):
        block = bounds[start : start + _BLOCK + 1]
        records, errors = library.load().dear_read_records(
            [str(path)], 0 * block[1:], block[:-1], block[1:]
        )
        failed = np.flatnonzero(errors.numpy() != b"")
        whole = int(failed[0]) if len(failed) else len(block) - 1
        yield records[:whole], block[: whole + 1]
        if len(failed):
            return


def _bounds(path: pathlib.Path, begin: int) -> np.ndarray:
    """Where records begin, and the last one ends, if the lengths in the file are right."""
    bounds, size = [begin], path.stat().st_size
    with path.open("rb") as file:
        while bounds[-1] + FRAME_BYTES <= size:
            file.seek(bounds[-1])
            (length,) = struct.unpack("<Q", file.read(8))
            if length > size - bounds[-1] - FRAME_BYTES:
                break
            bounds.append(bounds[-1] + length + FRAME_BYTES)
    return np.array(bounds, np.int64)
