# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Packages that only some commands need: extras of the distribution, such as `tfdear[plot]`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def required(extra: str) -> Iterator[None]:
    """Names the command that installs the extra of setup.cfg that an import inside needs."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or extra).partition(".")[0]
        raise ModuleNotFoundError(
            f'{package} is not installed; run: {sys.executable} -m pip install "tfdear[{extra}]"',
            name=package,
        ) from error
