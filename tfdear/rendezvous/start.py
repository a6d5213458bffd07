# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The start of a job: all ranks come, compare what must be alike, and start together or not."""

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
from tfdear.rendezvous import cluster as cluster_lib
from tfdear.rendezvous.mismatch import mismatch

# A refused connection to rank 0 on this machine, where it has answered before, for so long.
_REFUSED_SECONDS = 1.5
_GRACE_SECONDS = 5.0  # ranks that do not fit together are refused after this time at the latest
_GO = "go"  # the verdict that all ranks start; any other verdict is the reason why not
_REFUSAL_SECONDS = 10.0  # rank 0 stays so long for the others to read why the job does not start


class Meeting:
    """The start of a job, seen from one rank."""

    def __init__(self, cluster: cluster_lib.Cluster, timeout: float, heartbeat: float):
        self.store = coordination.CoordinationClient(cluster.coordinator)
        self._cluster = cluster
        self._timeout = timeout
        self._deadline = coordination.Deadline(timeout)
        # Our own deadline ends the start; TensorFlow's lies behind it.
        self._server = tf_server.ServerStart(cluster, heartbeat, timeout + 60.0)
        self._heartbeat = heartbeat
        self._liveness = liveness.Liveness(self.store, cluster.rank, heartbeat)
        self._dead: list[int] = []
        # When rank 0 answered last, if it ever did, and since when nobody listens there.
        self._answered: float | None = None
        self._refused_since: float | None = None
        self._came: dict[int, dict[str, Any]] = {}
        self._mismatch_grace: coordination.Deadline | None = None
        self._member = False

    def run(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        rank, world_size = self._cluster.rank, self._cluster.world_size
        if rank == 0:
            self._server.start()
        # A server takes a moment to listen, and rank 0 may start much later than this rank.
        # In this order: whoever has come can be missed.
        while not (self._try(self._pulse) and self._try(lambda: self._announce(own))):
            self._wait_a_little()
        self._member = True
        self._came[rank] = own
        while not self._try(self._agree):
            self._wait_a_little()
        # TensorFlow connects only after everybody agreed: its own words on a rank that does not
        # belong to the job would not tell a user what to change.
        if rank != 0:
            self._server.start()
        while self._server.is_alive():
            self._try(self._look_for_failed_connect)
            self._wait_a_little()
        self._check_server()
        self._try(self._leave)
        return [self._came[r] for r in range(world_size)]

    def refuse(self, reason: str) -> None:
        """Tells the others why this rank does not start; rank 0 stays until they have read it."""
        try:
            # A process that comes too much, after the ranks have agreed, is alone with its error.
            if not self.store.insert("start/verdict", reason, timeout=2.0) and self._member:
                self.store.insert("start/failed", reason, timeout=2.0)
            me = f"{socket.gethostname()} {os.getpid()}"  # two processes may claim one rank
            self.store.insert(f"start/read/{me}", "", timeout=2.0)
            deadline = coordination.Deadline(_REFUSAL_SECONDS)
            if self._cluster.rank == 0 and self._dead:
                logging.error("tfdear: rank 0 ends: %s", reason)  # Before it waits for the others.
            while self._cluster.rank == 0 and not deadline.expired():
                came = self.store.directory("start/rank", timeout=2.0)
                facts = store_records.facts_of_rank(came)
                living = [own for rank, own in facts.items() if rank not in self._dead]
                names = {f"{own['host']} {own['pid']}" for own in living}
                told = names <= set(self.store.directory("start/read", timeout=2.0))
                # Ranks may still be on their way, unless they are the reason of the refusal.
                all_here = len(came) >= self._cluster.world_size or self._deadline.expired()
                if told and all_here:
                    break
                deadline.pause()
        except (errors.StoreUnavailableError, errors.RendezvousError):
            pass  # nobody can be told any more

    def _announce(self, own: dict[str, Any]) -> bool:
        rank = self._cluster.rank
        timeout = self._call_seconds()
        if self.store.insert(f"start/rank/{rank}", json.dumps(own), timeout=timeout):
            return True
        text = self.store.try_get(f"start/rank/{rank}", timeout=timeout) or ""
        other = store_records.facts_of_rank({str(rank): text})[rank]
        if (other["pid"], other["host"]) == (own["pid"], own["host"]):
            return True  # an earlier try of ours arrived after all
        raise errors.RendezvousError(
            f"two processes claim rank {rank} of the job at {self._cluster.coordinator}: pid "
            f"{other['pid']} on host {other['host']}, and pid {own['pid']} on host "
            f"{own['host']}. Give every process a rank of its own ({self._cluster.source})."
        )

    def _agree(self) -> bool:
        """True when all ranks start. The first to write the key "start/verdict" decides."""
        timeout = self._call_seconds()
        # In this order: when the verdict is there, so is everybody it is about.
        verdict = self.store.try_get("start/verdict", timeout=timeout)
        self._look_who_came()
        timeout = self._call_seconds()
        if verdict is None and self._cluster.rank == 0:
            if self._came.keys() >= set(range(self._cluster.world_size)):
                self.store.insert("start/verdict", _GO, timeout=timeout)
        elif verdict is not None and verdict != _GO:
            differ = mismatch(self._came) is not None
            raise (errors.MismatchError if differ else errors.RendezvousError)(verdict)
        return verdict == _GO

    def _look_for_failed_connect(self) -> bool:
        timeout = self._call_seconds()
        reason = self.store.try_get("start/failed", timeout=timeout)
        if reason is not None:
            raise errors.RendezvousError(reason)
        return True

    def _look_who_came(self) -> bool:
        timeout = self._call_seconds()
        entries = self.store.directory("start/rank", timeout=timeout)
        self._came = store_records.facts_of_rank(entries)
        difference = mismatch(self._came)
        if difference:
            # The others are on their way; with them the text tells the whole story.
            self._mismatch_grace = self._mismatch_grace or coordination.Deadline(_GRACE_SECONDS)
            if len(self._came) >= self._cluster.world_size or self._mismatch_grace.expired():
                raise errors.MismatchError(difference)
        return not difference

    def _pulse(self) -> bool:
        self._liveness.pulse(self._call_seconds())
        return True

    def _leave(self) -> bool:
        self._liveness.leave(self._call_seconds())
        return True

    def _call_seconds(self) -> float:
        # Several calls fit into a heartbeat, so that the silence of rank 0 is noticed in time.
        longest = min(coordination.CALL_SECONDS, max(self._heartbeat / 4, 1.0))
        return min(longest, self._deadline.remaining())

    def _try(self, call: Callable[[], bool]) -> bool:
        """The call's answer, False when rank 0 does not answer (yet)."""
        try:
            answer = call()
        except errors.StoreUnavailableError as error:
            now = time.monotonic()
            self._refused_since = (self._refused_since or now) if error.refused else None
            if self._answered is not None and self._cluster.rank != 0:
                self._judge_silence_of_rank_0(now - self._answered)
            return False
        self._answered = time.monotonic()
        self._refused_since = None
        return answer

    def _judge_silence_of_rank_0(self, silent: float) -> None:
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

    def _watch(self) -> bool:
        """Shows that this rank is alive; rank 0 looks whether the others are."""
        timeout = self._call_seconds()
        self._liveness.pulse(timeout)
        if self._cluster.rank == 0:
            dead = set(self._liveness.silent_ranks(timeout))
            dead |= set(self.store.unhealthy_tasks(self._cluster.world_size, timeout=timeout))
            self._dead = sorted(dead)
        if self._dead:
            self._look_who_came()
            who = ", ".join(map(self._describe, self._dead))
            verb = "has" if len(self._dead) == 1 else "have"
            raise errors.RendezvousError(
                f"{who} {verb} not given a sign of life for {self._heartbeat:g} s "
                "(TFDEAR_HEARTBEAT) while the job started: killed, crashed or stopped, or the "
                f"machine or the network is gone. See the log of {rank_names.ranks(self._dead)}."
            )
        return True

    def _describe(self, rank: int) -> str:
        own = self._came.get(rank)
        if own is None:  # It has died before this rank heard more of it.
            return f"rank {rank}" + (f" at {self._cluster.coordinator}" if rank == 0 else "")
        return rank_names.describe(rank, own)

    def _wait_a_little(self) -> None:
        if not self._server.is_alive():
            self._check_server()
        if self._member and self._liveness.due():
            self._try(self._watch)
        if self._deadline.expired():
            self._try(self._look_who_came)
            raise errors.RendezvousTimeoutError(self._expired())
        self._deadline.pause()

    def _check_server(self) -> None:
        if self._server.error is not None:
            self._wait_for_another_reason()
            raise errors.RendezvousError(
                f"rank {self._cluster.rank} could not start TensorFlow's server for the job at "
                f"{self._cluster.coordinator}: {self._server.error}"
            )

    def _wait_for_another_reason(self) -> None:
        """The likely reason is a rank that died; its silence tells that after a heartbeat."""
        patience = coordination.Deadline(self._heartbeat + 2.0 if self._member else 0.0)
        while not patience.expired():
            if self._liveness.due():
                self._try(self._watch)
            self._try(self._look_for_failed_connect)
            patience.pause()

    def _expired(self) -> str:
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
