# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The start of a job: all ranks come, compare what must be the same, and start together or not."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from absl import logging

from tfdear import errors
from tfdear.rendezvous import (
    addresses,
    coordination,
    liveness,
    rank_names,
    store_records,
    tf_server,
)
from tfdear.rendezvous.cluster import Cluster
from tfdear.rendezvous.mismatch import mismatch

# Rank 0 on this machine is lost when it has answered once and then refuses connections this long.
_REFUSED_SECONDS = 1.5
_GRACE_SECONDS = 5.0  # Ranks that do not fit together are refused after this time at the latest.
_GO = "go"  # The verdict that all ranks start; any other verdict is the reason why not.
_REFUSAL_SECONDS = 10.0  # Rank 0 waits this long for the others to read why the job does not start.


class Meeting:
    """The start of a job, seen from one rank."""

    def __init__(self, cluster: Cluster, timeout: float, heartbeat: float):
        self.store = coordination.CoordinationClient(cluster.coordinator)
        self._cluster = cluster
        self._timeout = timeout
        self._deadline = coordination.Deadline(timeout)
        # Our own deadline ends the start; TensorFlow's is later.
        self._server = tf_server.ServerStart(cluster, heartbeat, timeout + 60.0)
        self._heartbeat = heartbeat
        self._liveness = liveness.Liveness(self.store, cluster.rank, heartbeat)
        self._dead: list[int] = []
        # When rank 0 answered last, if it ever did, and since when it refuses connections.
        self._answered: float | None = None
        self._refused_since: float | None = None
        self._came: dict[int, dict[str, Any]] = {}
        self._mismatch_grace: coordination.Deadline | None = None
        self._member = False

    def run(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        rank, world_size = self._cluster.rank, self._cluster.world_size
        if rank == 0:
            self._server.start()
        # Rank 0's server may start to listen much later than this rank. The sign of life is first:
        # a rank that is known to have come can then be found missing.
        while not (self._try(self._pulse) and self._try(lambda: self._announce(own))):
            self._pause()
        self._member = True
        self._came[rank] = own
        while not self._try(self._agree):
            self._pause()
        # TensorFlow connects only after all ranks have agreed: its own error about a rank that does
        # not belong to the job would not tell a user what to change.
        if rank != 0:
            self._server.start()
        while self._server.is_alive():
            self._try(self._raise_if_another_failed)
            self._pause()
        self._check_server()
        self._try(lambda: self._liveness.leave(self._call_seconds()))
        return [self._came[r] for r in range(world_size)]

    def refuse(self, reason: str) -> None:
        """Tells the others why this rank does not start; rank 0 stays until they have read it."""
        try:
            # A surplus process that comes after the ranks have agreed keeps its error to itself.
            if not self.store.insert("start/verdict", reason, timeout=2.0) and self._member:
                self.store.insert("start/failed", reason, timeout=2.0)
            process = f"{socket.gethostname()} {os.getpid()}"  # Two may claim one rank.
            self.store.insert(f"start/read/{process}", "", timeout=2.0)
            deadline = coordination.Deadline(_REFUSAL_SECONDS)
            if self._cluster.rank == 0 and self._dead:
                logging.error("tfdear: rank 0 ends: %s", reason)  # Before it waits for the others.
            while self._cluster.rank == 0 and not deadline.expired():
                came = self.store.directory("start/rank", timeout=2.0)
                descriptions = store_records.descriptions(came)
                living = [own for rank, own in descriptions.items() if rank not in self._dead]
                names = {f"{own['host']} {own['pid']}" for own in living}
                told = names <= set(self.store.directory("start/read", timeout=2.0))
                # Ranks may still be about to come, unless they are why the job is refused.
                all_here = len(came) >= self._cluster.world_size or self._deadline.expired()
                if told and all_here:
                    break
                deadline.pause()
        except (errors.StoreUnavailableError, errors.RendezvousError):
            pass  # Nobody can be told any more.

    def _announce(self, own: dict[str, Any]) -> bool:
        rank = self._cluster.rank
        timeout = self._call_seconds()
        if self.store.insert(f"start/rank/{rank}", json.dumps(own), timeout=timeout):
            return True
        text = self.store.try_get(f"start/rank/{rank}", timeout=timeout) or ""
        other = store_records.descriptions({str(rank): text})[rank]
        if (other["pid"], other["host"]) == (own["pid"], own["host"]):
            return True  # An earlier attempt of this process arrived after all.
        raise errors.RendezvousError(
            f"two processes claim rank {rank} of the job at {self._cluster.coordinator}: pid "
            f"{other['pid']} on host {other['host']}, and pid {own['pid']} on host "
            f"{own['host']}. Give every process a rank of its own ({self._cluster.source})."
        )

    def _agree(self) -> bool:
        """True when all ranks start. The first to write the key "start/verdict" decides."""
        timeout = self._call_seconds()
        # The verdict first: when it is there, so are all ranks that it is about.
        verdict = self.store.try_get("start/verdict", timeout=timeout)
        self._read_who_came()
        timeout = self._call_seconds()
        if verdict is None and self._cluster.rank == 0:
            if self._came.keys() >= set(range(self._cluster.world_size)):
                self.store.insert("start/verdict", _GO, timeout=timeout)
        elif verdict is not None and verdict != _GO:
            differ = mismatch(self._came) is not None
            raise (errors.MismatchError if differ else errors.RendezvousError)(verdict)
        return verdict == _GO

    def _raise_if_another_failed(self) -> None:
        reason = self.store.try_get("start/failed", timeout=self._call_seconds())
        if reason is not None:
            raise errors.RendezvousError(reason)

    def _read_who_came(self) -> None:
        entries = self.store.directory("start/rank", timeout=self._call_seconds())
        self._came = store_records.descriptions(entries)
        difference = mismatch(self._came)
        if difference:
            # With the ranks that are still to come, the message is complete.
            self._mismatch_grace = self._mismatch_grace or coordination.Deadline(_GRACE_SECONDS)
            if len(self._came) >= self._cluster.world_size or self._mismatch_grace.expired():
                raise errors.MismatchError(difference)

    def _pulse(self) -> bool:
        self._liveness.pulse(self._call_seconds())
        return True

    def _call_seconds(self) -> float:
        # Several calls fit into a heartbeat, so that the silence of rank 0 is noticed in time.
        longest = min(coordination.CALL_SECONDS, max(self._heartbeat / 4, 1.0))
        return min(longest, self._deadline.remaining())

    def _try(self, call: Callable[[], bool | None]) -> bool | None:
        """The call's answer, False when rank 0 does not answer (yet)."""
        try:
            answer = call()
        except errors.StoreUnavailableError as error:
            now = time.monotonic()
            self._refused_since = (self._refused_since or now) if error.refused else None
            if self._answered is not None and self._cluster.rank != 0:
                self._check_rank_0(now - self._answered)
            return False
        self._answered = time.monotonic()
        self._refused_since = None
        return answer

    def _check_rank_0(self, silent: float) -> None:
        refused = time.monotonic() - (self._refused_since or time.monotonic())
        if addresses.meets_on_loopback(self._cluster) and refused > _REFUSED_SECONDS:
            what = "was lost: it was killed or crashed"
        elif silent > self._heartbeat:
            what = (
                f"has not answered for {silent:.0f} s (heartbeat {self._heartbeat:g} s): it was "
                "killed or is stopped, or its machine or network is gone"
            )
        else:
            return
        raise errors.RendezvousError(
            f"{self._describe(0)}, which hosts the coordination service, {what}, while the job "
            "started. See rank 0's log."
        ) from None

    def _watch(self) -> None:
        """Gives a sign of life; rank 0 checks those of the others."""
        timeout = self._call_seconds()
        self._liveness.pulse(timeout)
        if self._cluster.rank == 0:
            dead = set(self._liveness.silent_ranks(timeout))
            dead |= set(self.store.unhealthy_tasks(self._cluster.world_size, timeout=timeout))
            self._dead = sorted(dead)
        if self._dead:
            self._read_who_came()
            who = ", ".join(map(self._describe, self._dead))
            verb = "has" if len(self._dead) == 1 else "have"
            raise errors.RendezvousError(
                f"{who} {verb} not given a sign of life for {self._heartbeat:g} s "
                "(TFDEAR_HEARTBEAT) while the job started: killed, crashed or stopped, or the "
                f"machine or the network is gone. See the log of {rank_names.ranks(self._dead)}."
            )

    def _describe(self, rank: int) -> str:
        own = self._came.get(rank)
        if own is None:  # It died before this rank knew more of it.
            return f"rank {rank}" + (f" at {self._cluster.coordinator}" if rank == 0 else "")
        return rank_names.describe(rank, own)

    def _pause(self) -> None:
        if not self._server.is_alive():
            self._check_server()
        if self._member and self._liveness.due():
            self._try(self._watch)
        if self._deadline.expired():
            self._try(self._read_who_came)
            raise errors.RendezvousTimeoutError(self._timeout_message())
        self._deadline.pause()

    def _check_server(self) -> None:
        if self._server.error is not None:
            self._wait_for_root_cause()
            raise errors.RendezvousError(
                f"rank {self._cluster.rank} could not start TensorFlow's server for the job at "
                f"{self._cluster.coordinator}: {self._server.error}"
            )

    def _wait_for_root_cause(self) -> None:
        """Raises when another rank is the cause: likely one that died, known after a heartbeat."""
        patience = coordination.Deadline(self._heartbeat + 2.0 if self._member else 0.0)
        while not patience.expired():
            if self._liveness.due():
                self._try(self._watch)
            self._try(self._raise_if_another_failed)
            patience.pause()

    def _timeout_message(self) -> str:
        cluster = self._cluster
        text = f"the job did not come together within {self._timeout:g} s. "
        if not self._came:
            return text + (
                f"Rank {cluster.rank} (host {socket.gethostname()}) could not reach rank 0 at "
                f"{cluster.coordinator} ({cluster.source}). Check that rank 0 runs, that this "
                "address is right and that no firewall is between."
            )
        return (
            text
            + rank_names.came(list(self._came), cluster.world_size)
            + f" The meeting point is {cluster.coordinator}. Check that the missing ranks were "
            "started, with this address, and see their logs."
        )
