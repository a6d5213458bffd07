# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Notices a step whose ops wait for each other, so that none of them ends.

Collectives have a deadline, from when they are issued on. What a collective needs of this rank may
wait, too: for updates, or for vectors of another table. Ops that wait in a circle are seen by no
collective: all ranks would wait for ever, as they run the same steps.
"""

from collections.abc import Callable, Sequence
from typing import Any


class StuckStep:
    """Looks at the ops that wait: `waits` returns a state, which changes with all that happens."""

    def __init__(self, waits: Callable[[], tuple[int, list[str]]]):
        self._waits = waits
        self._state: int | None = None
        self._since = 0.0

    def look(self, now: float, in_flight: Sequence[Any]) -> tuple[float, list[str]]:
        """For how many seconds ops have waited without anything happening, and which.

        While collectives are in flight, something happens.
        """
        state, ops = self._waits()
        if state != self._state or in_flight or not ops:
            self._state, self._since = state, now
        return now - self._since, ops
