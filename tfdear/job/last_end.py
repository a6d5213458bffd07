# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Lets a process outlive its script as long as other ranks may need what it holds."""

import atexit
import contextlib

from tfdear import errors
from tfdear.monitor.monitor import Monitor
from tfdear.rendezvous.rendezvous import Rendezvous
from tfdear.rendezvous.store import CALL_SECONDS

_ENDED, _ALL_ENDED = "job/ended", "job/all_ended"
_PAUSE_SECONDS = 0.1


class LastEnd:
    """Waits, where a script ends without an error, for the ends of those of all ranks.

    There is no other limit: whoever is lost, or fails, ends all ranks by the monitor.
    """

    def __init__(self, rendezvous: Rendezvous, rank: int, monitor: Monitor):
        self._rendezvous, self._rank, self._monitor = rendezvous, rank, monitor
        self._is_awaited = False

    def await_at_exit(self) -> None:
        """From now on this process stays."""
        if not self._is_awaited:
            self._is_awaited = True
            atexit.register(self._wait)

    def _wait(self) -> None:
        store, ranks = self._rendezvous.store, self._rendezvous.world_size
        with contextlib.suppress(errors.StoreUnavailableError):
            if self._monitor.healthy:
                store.insert(f"{_ENDED}/{self._rank}", "", timeout=CALL_SECONDS)
            while self._monitor.healthy:
                if store.wait_for(_ALL_ENDED, timeout=_PAUSE_SECONDS) is not None:
                    return
                if self._rank == 0 and len(store.told(_ENDED)) == ranks:
                    store.insert(_ALL_ENDED, "", timeout=CALL_SECONDS)
