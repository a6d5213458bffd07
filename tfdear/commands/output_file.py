# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Looks at a file that a command is to write, before the command takes its time."""

from __future__ import annotations

import os


def check_writable(*paths: str | None) -> None:
    """Raises if a file could not be written at the end; what is there stays.

    Args:
        *paths: Files. None: nothing is to be written.

    Raises:
        OSError: A file cannot be written.
    """
    for path in paths:
        if path is None:
            continue
        existed = os.path.exists(path)
        with open(path, "a"):
            pass
        if not existed:
            os.remove(path)
