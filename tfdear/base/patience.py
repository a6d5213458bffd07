# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""When to speak of a wait that has no deadline, as what it waits for may rightly take long."""

import time

FIRST_SECONDS = 60.0


class Patience:
    """A wait that begins now; it is spoken of after a minute, and again after twice the time."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._next = FIRST_SECONDS

    def ran_out(self) -> float:
        """For how many seconds it has lasted, where it is to be spoken of now; else 0."""
        seconds = time.monotonic() - self._begin
        if seconds < self._next:
            return 0.0
        self._next = 2 * seconds
        return seconds
