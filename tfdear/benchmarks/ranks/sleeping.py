# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Computation that only takes time: an accelerator stand-in for replays of traces."""

import ctypes
import time

_PR_SET_TIMERSLACK = 29
# Below this a sleep takes longer than it should; the next one makes up for it.
_SHORTEST_SLEEP = 3e-5
# A wait that took longer did wait: the device stood still until its end.
_BLOCKED = 5e-5


class Device:
    """A device whose work is sleep, until absolute times so that errors do not add up."""

    def __init__(self) -> None:
        # Linux lets sleeps take 50 microseconds more by default, to save power.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        self.cursor = time.perf_counter()

    def restart(self) -> None:
        """Is idle now."""
        self.cursor = time.perf_counter()

    def compute(self, seconds: float) -> None:
        """Works for that long after the work before."""
        self.cursor += seconds
        left = self.cursor - time.perf_counter()
        if left > _SHORTEST_SLEEP:
            time.sleep(left)

    def wait(self, function) -> None:
        """Stands still as long as `function` blocks."""
        begin = time.perf_counter()
        function()
        end = time.perf_counter()
        if end - begin > _BLOCKED:
            self.cursor = max(self.cursor, end)
