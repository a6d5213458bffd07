# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Computation that only takes time: it stands for an accelerator in replays of traces."""

import ctypes
import time

_PR_SET_TIMERSLACK = 29
# Shorter sleeps take too long; they are left out, and the next one makes up for it.
_SHORTEST_SLEEP = 3e-5


class Device:
    """A device that sleeps in place of computation, until absolute times: errors do not add up."""

    def __init__(self) -> None:
        # Linux lets sleeps take 50 microseconds more by default, to save power.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        self.cursor = time.monotonic()

    def restart(self) -> None:
        """Makes the device idle from now on."""
        self.cursor = time.monotonic()

    def catch_up(self, tolerance: float) -> None:
        """Does not make up for idle time, if that was longer than `tolerance` seconds.

        For callers that do not know when their data came. A shorter time is taken for what the
        machine needs to hand it on, which an accelerator does not wait for.
        """
        now = time.monotonic()
        if now - self.cursor > tolerance:
            self.cursor = now

    def compute(self, seconds: float) -> None:
        """Computes for `seconds` after the previous computation."""
        self.cursor += seconds
        left = self.cursor - time.monotonic()
        if left > _SHORTEST_SLEEP:
            time.sleep(left)

    def wait_until(self, moment: float) -> None:
        """Is idle until a time of `time.monotonic`, unless it computes longer.

        The time is that of the arrival of data. An accelerator would not wait until this process
        notices it, which is later where the machine has fewer cores than ranks.
        """
        self.cursor = max(self.cursor, moment)
