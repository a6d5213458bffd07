# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Reads what the engine recorded."""

import ctypes

import numpy as np

from tfdear.engine import c_api, events

_EVENTS_AT_ONCE = 1 << 12


class EventReader:
    """Reads the event record from a place of its own, so that readers do not disturb each other.

    It begins with the event of that number; 0, with the oldest that is still there. The engine
    keeps the last 131072, of all strategies of this process.
    """

    def __init__(self, first: int = 0) -> None:
        self._position = ctypes.c_uint64(first)
        # Events that were overwritten before this reader saw them.
        self.lost = 0

    @classmethod
    def next_event(cls) -> int:
        """The number of the next event that is recorded."""
        position = ctypes.c_uint64((1 << 64) - 1)
        c_api.load().tfdear_events_read(ctypes.byref(position), None, 0)
        return position.value

    def read_rows(self) -> np.ndarray:
        """The events since the last call, oldest first, as an array of `EVENT_ROW`."""
        pieces = []
        while True:
            rows = np.empty(_EVENTS_AT_ONCE, events.EVENT_ROW)
            before = self._position.value
            count = c_api.load().tfdear_events_read(
                ctypes.byref(self._position), rows.ctypes.data, len(rows)
            )
            self.lost += self._position.value - before - count
            pieces.append(rows[:count])
            if count < len(rows):
                return np.concatenate(pieces)

    def read(self) -> list[events.Event]:
        """The events since the last call, oldest first. Times are seconds of the steady clock."""
        return events.to_events(self.read_rows())
