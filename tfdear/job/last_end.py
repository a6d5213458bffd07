# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Lets a process outlive its script as long as other ranks may need what it holds."""

import atexit
import contextlib
import time

from tfdear import errors
from tfdear.monitor.monitor import Monitor
from tfdear.rendezvous import coordination
from tfdear.rendezvous.rendezvous import Rendezvous

_ENDED, _ALL_ENDED = "job/ended", "job/all_ended"
_PAUSE_SECONDS = 0.1
# All ranks ask the store: no more than so many at a time.
_RANKS_PER_PAUSE = 100


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
        pause = _PAUSE_SECONDS * max(1, ranks // _RANKS_PER_PAUSE)
        seconds = coordination.CALL_SECONDS
        with contextlib.suppress(errors.StoreUnavailableError):
            if self._monitor.healthy:
                store.insert(f"{_ENDED}/{self._rank}", "", timeout=seconds)
            while self._monitor.healthy:
                if self._rank > 0:
                    if store.try_get(_ALL_ENDED, timeout=seconds) is not None:
                        return
                elif len(store.directory(_ENDED, timeout=seconds)) == ranks:
                    store.insert(_ALL_ENDED, "", timeout=seconds)
                    return
                time.sleep(pause)
