# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Checks at the start of a command that it can write its results at the end."""

from __future__ import annotations

import os


def check_writable(*paths: str | None) -> None:
    """Raises OSError if a file cannot be written; existing contents stay.

    A path is None where the command writes no file.
    """
    for path in paths:
        if path is None:
            continue
        existed = os.path.exists(path)
        with open(path, "a"):
            pass
        if not existed:
            os.remove(path)
