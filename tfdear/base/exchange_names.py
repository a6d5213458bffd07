# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Exchanges the names of two files or folders in one step, so that both are always there."""

import ctypes
import os

_HERE = -100  # AT_FDCWD
_EXCHANGE = 2  # RENAME_EXCHANGE


def exchange_names(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether it was done: not where one of both is missing, or the file system cannot do it."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # Of glibc 2.28 and later.
    if rename is None:
        return False
    return rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0
