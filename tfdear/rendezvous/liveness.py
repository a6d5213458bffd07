# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Signs of life while ranks meet, when TensorFlow's heartbeats do not run yet.

Every rank counts under a key of its own; a rank whose count does not change is dead or stopped.
"""

import time
from typing import Any

from tfdear.rendezvous import store_records

_KEY = "start/alive"
_LEFT = "left"  # Instead of a number: this rank has started, and heartbeats watch it now.
_LONGEST_PULSE_SECONDS = 1.0
# The time between two polls counts at most this much: a rank that was itself held up has not seen
# what the others did meanwhile.
_LONGEST_POLL_SECONDS = 1.0


class Liveness:
    """This rank's signs of life in the store, and its view of the others'.

    A rank is given up after `heartbeat` seconds without a sign. Calls raise a StoreUnavailableError
    if rank 0 does not answer within `timeout` seconds.
    """

    def __init__(self, store: Any, rank: int, heartbeat: float):
        self._store = store
        self._rank = rank
        self._heartbeat = heartbeat
        self._pulse_seconds = min(heartbeat / 4, _LONGEST_PULSE_SECONDS)
        self._count = 0
        self._next_pulse = 0.0
        self._polled = time.monotonic()
        # By rank: its last sign of life, and for how many seconds that has not changed.
        self._last_sign: dict[int, str] = {}
        self._silence: dict[int, float] = {}

    def due(self) -> bool:
        """Whether it is time for the next sign of life, and the next poll."""
        return time.monotonic() >= self._next_pulse

    def pulse(self, timeout: float) -> None:
        """Shows that this rank is alive."""
        self._next_pulse = time.monotonic() + self._pulse_seconds
        self._count += 1
        self._publish(str(self._count), timeout)

    def leave(self, timeout: float) -> None:
        """Says that no more signs will come, and none is needed."""
        self._publish(_LEFT, timeout)

    def silent_ranks(self, timeout: float) -> list[int]:
        """The ranks that gave a sign of life once, and none for a heartbeat."""
        entries = self._store.directory(_KEY, timeout=timeout)
        now = time.monotonic()
        passed = min(now - self._polled, _LONGEST_POLL_SECONDS)
        self._polled = now
        for text, sign in entries.items():
            rank = store_records.number_of_rank(_KEY, text)
            unchanged = sign != _LEFT and self._last_sign.get(rank) == sign
            self._silence[rank] = self._silence.get(rank, 0.0) + passed if unchanged else 0.0
            self._last_sign[rank] = sign
        return sorted(rank for rank, seconds in self._silence.items() if seconds > self._heartbeat)

    def _publish(self, sign: str, timeout: float) -> None:
        self._store.insert(f"{_KEY}/{self._rank}", sign, timeout=timeout, overwrite=True)
