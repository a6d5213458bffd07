# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where the records of a source's files are, kept on a local disk beside what was read of them."""

import os
import pathlib

import numpy as np
from absl import logging

# A zip file, whose checksum is compared when it is read.
_NAME = "records.npz"


def load(folder: pathlib.Path) -> np.ndarray | None:
    """The lengths of all records, in their order; None: there is no index, or a damaged one."""
    path = folder / _NAME
    if not path.exists():
        return None
    try:
        # NumPy leaves a damaged file that it opened itself open, for as long as its error is kept.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            lengths = arrays["lengths"]
    except (
        Exception
    ) as error:  # NumPy has no error for damaged files: what is parsed raises its own.
        logging.warning(
            "tfdear: DataCache on disk: %s is damaged, so that the source's records are looked for "
            "again: %s",
            path,
            error,
        )
        return None
    return lengths if lengths.dtype == np.int64 and lengths.ndim == 1 else None


def keep(folder: pathlib.Path, lengths: np.ndarray) -> None:
    """Writes an index unless there is a whole one."""
    if load(folder) is not None:
        return
    aside = folder / f"{_NAME}.new"
    try:
        with aside.open("wb") as file:
            np.savez_compressed(file, lengths=lengths.astype(np.int64))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(folder / _NAME)
    except OSError as error:
        aside.unlink(missing_ok=True)
        logging.warning("tfdear: DataCache on disk: there is no index of the source: %s", error)
