# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What all benchmarks have in common: where and how often they measure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tfdear.benchmarks.lab import Lab


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a benchmark.

    Args:
        lab: The nodes.
        pin: Whether every rank gets one core.
        repeats: Turns of each case, of which the median counts.
        tell: Prints a line.
        iterations: Iterations or training steps of a turn. Defaults to 1.
    """

    lab: Lab
    pin: bool
    repeats: int
    tell: Callable[[str], None]
    iterations: int = 1
