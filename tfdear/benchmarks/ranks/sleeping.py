# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Computation that only takes time: an accelerator stand-in for replays of traces."""

import ctypes
import time

_PR_SET_TIMERSLACK = 29
# Below this a sleep takes longer than it should; the next one makes up for it.
_SHORTEST_SLEEP = 3e-5


class Device:
    """A device whose work is sleep, until absolute times so that errors do not add up."""

    def __init__(self) -> None:
        # Linux lets sleeps take 50 microseconds more by default, to save power.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        self.cursor = time.monotonic()

    def restart(self) -> None:
        """Is idle now."""
        self.cursor = time.monotonic()

    def compute(self, seconds: float) -> None:
        """Works for that long after the work before."""
        self.cursor += seconds
        left = self.cursor - time.monotonic()
        if left > _SHORTEST_SLEEP:
            time.sleep(left)

    def wait_until(self, moment: float) -> None:
        """Stands still until then, of `time.monotonic`, unless it worked longer.

        With the moment at which data came: that this process heard of it later, because the machine
        has fewer cores than ranks, is nothing that an accelerator would wait for.
        """
        self.cursor = max(self.cursor, moment)
