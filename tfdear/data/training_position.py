# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where in its epochs training was when its weights were saved, kept in the same file."""

import json
import os

import h5py

_ATTRIBUTE = "tfdear_training_position"


def write(path: str | os.PathLike, epoch: int, batch: int) -> None:
    """Adds to a file of weights the epoch, and the last batch of it, as callbacks call it."""
    with h5py.File(path, "r+") as file:
        file.attrs[_ATTRIBUTE] = json.dumps([epoch, batch])


def read(path: str | os.PathLike) -> tuple[int, int] | None:
    """What `write` added; None: there is no such file, or nothing was added."""
    if not os.path.exists(path):
        return None
    with h5py.File(path, "r") as file:
        text = file.attrs.get(_ATTRIBUTE)
    if text is None:
        return None
    epoch, batch = json.loads(text)
    return epoch, batch
