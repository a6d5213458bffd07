# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a job wait for each other at its end."""

import atexit
import contextlib

from absl import logging

from tfdear import errors
from tfdear.base.deadline import Deadline
from tfdear.base.ending import is_child_of_multiprocessing
from tfdear.base.patience import Patience
from tfdear.monitor.monitor import Monitor
from tfdear.rendezvous import rank_names
from tfdear.rendezvous.rendezvous import Rendezvous
from tfdear.rendezvous.store import CALL_SECONDS
from tfdear.rendezvous.store_protocol import ALL_ENDED, ENDED

_PAUSE_SECONDS = 0.1


class LastEnd:
    """Waits until all ranks have come to the end of the job."""

    def __init__(self, rendezvous: Rendezvous, rank: int, monitor: Monitor):
        self._rendezvous, self._rank, self._monitor = rendezvous, rank, monitor
        self._is_awaited = False
        self._has_come = False

    def await_at_exit(self) -> None:
        """From now on this process outlives its script, as others may need what it holds.

        It waits, where a script ends without an error, for the ends of those of all ranks. There is
        no other limit: whoever is lost, or fails, ends all ranks by the monitor.
        """
        if not self._is_awaited:
            self._is_awaited = True
            if is_child_of_multiprocessing():
                self._rendezvous.ending.add(self._wait)
                return
            # Not among the actions of the ending, which come behind all exit handlers that were
            # registered since the job began: some of them free what others still read here.
            atexit.register(self._wait)
            self._rendezvous.ending.add(lambda: atexit.unregister(self._wait))

    def meet(self, timeout: float) -> None:
        """Waits until all ranks are here, or their scripts have ended.

        Raises:
            JobAbortedError: The job was aborted meanwhile.
            RendezvousTimeoutError: A rank did not come within `timeout` seconds; the text says
                which.
        """
        deadline = Deadline(timeout)
        while not self._come_and_look():
            self._monitor.check_alive()
            if deadline.expired():
                raise errors.RendezvousTimeoutError(
                    f"all ranks close() a strategy together, so that none closes it while another "
                    f"one still trains; after {timeout:g} s not all were there. "
                    + rank_names.came(self._ranks_here(), self._rendezvous.world_size)
                    + " See what the missing ranks do in their logs."
                )
            self._rendezvous.store.wait_for_news(min(_PAUSE_SECONDS, deadline.remaining()))

    def _come_and_look(self) -> bool:
        """Tells the others that this rank is here; returns whether all are.

        False, too, where rank 0 does not answer, as while its script holds the interpreter.
        """
        # Where the store is gone, it ended with rank 0's script, or the monitor finds out why.
        with contextlib.suppress(errors.StoreUnavailableError):
            if not self._has_come and not self._are_all_here():
                self._rendezvous.store.insert(f"{ENDED}/{self._rank}", "", timeout=CALL_SECONDS)
                self._has_come = True
            return self._are_all_here()
        return False

    def _are_all_here(self) -> bool:
        """Rank 0 knows who is; the others hear of all."""
        store = self._rendezvous.store
        if self._rank > 0:
            # Rank 0 tells nobody of all when its own script has ended.
            # What it has told is known, also when it tells nothing any more.
            return any(store.has_told(key) for key in (ALL_ENDED, "monitor/left/0"))
        here = store.told(ENDED).keys() | store.told("monitor/left").keys()
        if len(here) < self._rendezvous.world_size:
            return False
        store.insert(ALL_ENDED, "", timeout=CALL_SECONDS)
        return True

    def _ranks_here(self) -> list[int]:
        with contextlib.suppress(errors.StoreUnavailableError):
            store = self._rendezvous.store
            ended = store.directory(ENDED, timeout=CALL_SECONDS).keys()
            gone = store.directory("monitor/left", timeout=CALL_SECONDS).keys()
            return [int(rank) for rank in ended | gone]
        return [self._rank]

    def _wait(self) -> None:
        patience = Patience()
        while self._monitor.healthy and not self._come_and_look():
            self._rendezvous.store.wait_for_news(_PAUSE_SECONDS)
            if seconds := patience.ran_out():
                logging.warning(
                    "tfdear: rank %d stays, though its script ended %.0f s ago: others may still "
                    "read what it holds, such as examples of a cache, until theirs end. %s",
                    self._rank,
                    seconds,
                    rank_names.came(self._ranks_here(), self._rendezvous.world_size),
                )
