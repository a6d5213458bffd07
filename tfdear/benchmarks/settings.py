# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What all benchmarks have in common: where and how often they measure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tfdear.benchmarks.lab import Lab


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a benchmark."""

    lab: Lab
    pin: bool  # Whether every rank gets one core.
    repeats: int  # Turns of each case, of which the median counts.
    tell: Callable[[str], None]  # Prints a line.
    iterations: int = 1  # Iterations or training steps of a turn.
