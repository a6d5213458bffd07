# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Deadlines of loops that look again and again."""

import time

_POLL_SECONDS = (0.005, 0.1)  # First and longest pause between two looks.


class Deadline:
    """A time in the future, and growing pauses until then."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds
        self._pause, self._longest_pause = _POLL_SECONDS

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def expired(self) -> bool:
        """True when no time is left."""
        return self.remaining() == 0.0

    def pause(self) -> None:
        """Sleeps a little, longer every time, but not past the deadline."""
        time.sleep(min(self._pause, self.remaining()))
        self._pause = min(self._pause * 1.5, self._longest_pause)
