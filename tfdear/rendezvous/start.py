# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The start of a job: all ranks come, compare what must be the same, and start together or not."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from absl import logging

from tfdear import errors
from tfdear.base.deadline import Deadline
from tfdear.base.stack_requests import stack_requests
from tfdear.rendezvous import (
    addresses,
    certificates,
    nodes,
    rank_names,
    secret,
    secret_check,
    store,
    store_records,
    store_service,
)
from tfdear.rendezvous.cluster import Cluster, split_address
from tfdear.rendezvous.mismatch import mismatch

JOB_BYTES = 16  # Of the number of a job.
_GRACE_SECONDS = 5.0  # Ranks that do not fit together are refused after this time at the latest.
_REFUSAL_SECONDS = 10.0  # Rank 0 waits this long for the others to hear why the job does not start.
# Another secret must be found for so long: an earlier job may just be leaving the address.
_DIFFERENT_SECONDS = 3.0
_LOOK_SECONDS = 0.5  # Between two looks at what is not told.
_WORDS_SECONDS = 30.0  # Ranks may be started minutes apart; after so long it says who is missing.
# A wait for the verdict, of which a rank hears at once; rank 0 looks at who came in between.
_NEWS_SECONDS, _RANKS_SECONDS = 1.0, 0.1


class Meeting:
    """The start of a job, seen from one rank."""

    def __init__(self, cluster: Cluster, timeout: float, heartbeat: float):
        self._cluster = cluster
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._deadline = Deadline(timeout)
        self._begin = time.monotonic()
        self._has_said = False
        self._stack_requests = stack_requests()
        self._secret = secret.take()
        self.certificate: certificates.Certificate | None = None
        if self._secret is None:
            logging.warning(
                "tfdear: TFDEAR_INSECURE=1: whoever reaches %s can take part in this job, and read "
                "and change what its ranks send.",
                cluster.coordinator,
            )
        else:
            self.certificate = certificates.of_rank(self._secret.value, cluster.rank)
        self.store = store.Store(
            cluster.coordinator, heartbeat, cluster.world_size, self.certificate
        )
        self.service: store_service.StoreService | None = None
        # What ranks told about themselves, as far as this one knows: in the end rank 0 of all, and
        # each of rank 0.
        self.came: dict[int, dict[str, Any]] = {}
        self._lost: list[int] = []
        self._unreachable = ""  # What the last call said that rank 0 did not answer.
        self._mismatch_grace: Deadline | None = None
        # What is different at rank 0's address, since when, and when to look again.
        self._different: tuple[str, float] | None = None
        self._next_look = time.monotonic() + _LOOK_SECONDS

    def listen(self) -> None:
        """Serves the meeting, where this is rank 0."""
        cluster = self._cluster
        if cluster.rank == 0:
            self.service = store_service.StoreService(
                cluster.coordinator,
                addresses.to_listen_on(cluster.coordinator),
                cluster.world_size,
                self._heartbeat,
                self.certificate,
            )
            self.service.start()

    def run(self, own: dict[str, Any]) -> dict[str, Any]:
        """Takes part; returns the verdict with which all ranks start (`store_records.verdict`)."""
        cluster = self._cluster
        # Rank 0's service may start to listen much later than this rank.
        while not self._try(lambda: self._join(own)):
            self._pause()
        while True:
            verdict = self._try(self._agree)
            if verdict is not None:
                break
            self._pause()
        if not verdict["go"]:
            kind = errors.MismatchError if verdict["mismatch"] else errors.RendezvousError
            raise kind(verdict["message"])
        if len(verdict["node_steps"]) != cluster.world_size:
            raise errors.RendezvousError(
                f"rank 0 starts a job of {len(verdict['node_steps'])} ranks, and this is rank "
                f"{cluster.rank} of {cluster.world_size}. Do all ranks run the same tfdear?"
            )
        while not self._try(self._read_rank_0):
            self._pause()
        return verdict

    def refuse(self, error: errors.RendezvousError) -> None:
        """Tells the others why this rank does not start; rank 0 stays until they have heard it."""
        try:
            # A surplus process that comes after the ranks have agreed keeps its error to itself.
            self._decide(False, str(error), isinstance(error, errors.MismatchError))
            self.store.leave()
        except errors.StoreUnavailableError:
            self.store.close()  # Nobody can be told any more.
        if self.service is None:
            return
        if self._lost:
            logging.error("tfdear: rank 0 ends: %s", error)  # Before it waits for the others.
        deadline = Deadline(_REFUSAL_SECONDS)
        while not deadline.expired():
            # Ranks may still be about to come, unless they are why the job is refused.
            all_came = self.service.has_seen_all() or self._deadline.expired()
            if all_came and not self.service.present():
                break
            deadline.pause()

    def close(self) -> None:
        """Ends what a start that failed has begun, so that this process may try again."""
        self.store.close()
        if self.service is not None:
            self.service.stop()

    def _join(self, own: dict[str, Any]) -> bool:
        self._look_up_rank_0()
        rank = self._cluster.rank
        text = self.store.join(rank, json.dumps(own), timeout=self._deadline.remaining())
        if text is None:
            return True
        other = store_records.descriptions({str(rank): text})[rank]
        raise errors.RendezvousError(
            f"two processes claim rank {rank} of the job at {self._cluster.coordinator}: pid "
            f"{other['pid']} on host {other['host']}, and pid {own['pid']} on host "
            f"{own['host']}. Give every process a rank of its own ({self._cluster.source})."
        )

    def _look_up_rank_0(self) -> None:
        """Raises where its name is not known yet, as on platforms that name a process as it starts.

        gRPC would look for it again, but less and less often, with up to two minutes in between.
        """
        host, port = split_address(self._cluster.coordinator, "coordinator")
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise errors.StoreUnavailableError(
                f"{socket.gethostname()} knows no address of {host}: {error.strerror}."
            ) from None

    def _agree(self) -> dict[str, Any] | None:
        """Whether all ranks start, and if not, why; None: not known yet. Rank 0 decides."""
        seconds = _NEWS_SECONDS
        if self._cluster.rank == 0:
            self._look_at_ranks()
            seconds = _RANKS_SECONDS
        text = self.store.wait_for(
            "start/verdict", timeout=min(seconds, self._deadline.remaining())
        )
        return None if text is None else store_records.verdict(text)

    def _look_at_ranks(self) -> None:
        self.came = store_records.descriptions(self.store.told("start/rank"))
        self._lost = sorted(store_records.lost(self.store.told("lost")))
        if self._lost:
            self._decide(False, self._lost_message())
        difference = mismatch(self.came)
        world_size = self._cluster.world_size
        if difference:
            # With the ranks that are still to come, the message is complete.
            self._mismatch_grace = self._mismatch_grace or Deadline(_GRACE_SECONDS)
            if len(self.came) >= world_size or self._mismatch_grace.expired():
                self._decide(False, difference, is_mismatch=True)
        elif self.came.keys() >= set(range(world_size)):
            self._decide(True, node_ranks=nodes.numbers([self.came[r] for r in range(world_size)]))

    def _decide(
        self, go: bool, message: str = "", is_mismatch: bool = False, node_ranks: Sequence[int] = ()
    ) -> None:
        """The first verdict stands."""
        # Jobs of one user may have the same secret; this tells them apart.
        job = secrets.token_hex(JOB_BYTES)
        verdict = {
            "go": go,
            "mismatch": is_mismatch,
            "message": message,
            "node_steps": nodes.steps(node_ranks),
            "job": job,
        }
        self.store.insert("start/verdict", json.dumps(verdict), timeout=store.CALL_SECONDS)

    def _read_rank_0(self) -> bool:
        # For messages, also when it is gone.
        text = self.store.try_get("start/rank/0", timeout=store.CALL_SECONDS)
        self.came.update(store_records.descriptions({"0": text or ""}))
        return True

    def _read_who_came(self) -> bool:
        entries = self.store.directory("start/rank", timeout=store.CALL_SECONDS)
        self.came = store_records.descriptions(entries)
        return True

    def _try(self, call: Callable[[], Any]) -> Any:
        """The call's answer, None when rank 0 does not answer (yet)."""
        try:
            return call()
        except errors.StoreUnavailableError as error:
            if self.store.was_joined and self._cluster.rank != 0:
                self._raise_lost_rank_0(error)
            self._unreachable = str(error)
            self._look_for_difference()
            return None

    def _raise_lost_rank_0(self, error: errors.StoreUnavailableError) -> None:
        if error.refused:
            what = "was lost: it was killed or crashed"
        else:
            what = (
                f"has not answered for {self._heartbeat:g} s (TFDEAR_HEARTBEAT): it was killed or "
                "is stopped, or its machine or network is gone"
            )
        raise errors.RendezvousError(
            f"{self._describe(0)}, through which the ranks meet, {what}, while the job started. "
            "See rank 0's log."
        ) from None

    def _look_for_difference(self) -> None:
        """Raises where this rank and the process at rank 0's address have different secrets."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        found = secret_check.difference(self._cluster.coordinator, self.certificate)
        if found is None:
            self._different = None
            return
        if self._different is None or self._different[0] != found:
            self._different = (found, now)
        if now - self._different[1] < _DIFFERENT_SECONDS:
            return
        own = f"its secret is from {self._secret}" if self._secret else "it has TFDEAR_INSECURE=1"
        raise errors.RendezvousError(
            f"rank {self._cluster.rank} (host {socket.gethostname()}) and the process at "
            f"{self._cluster.coordinator}, where rank 0 should be, do not know each other: that "
            f"one has {found}; of this rank, {own}. Give all ranks the same TFDEAR_SECRET, or the "
            "same file (TFDEAR_SECRET_FILE); or another job has this address."
        )

    def _lost_message(self) -> str:
        silent = store_records.lost(self.store.told("lost"))
        who = ", ".join(map(self._describe, self._lost))
        verb = "was" if len(self._lost) == 1 else "were"
        if any(silent.values()):
            what = (
                f"gave no sign of life for {self._heartbeat:g} s (TFDEAR_HEARTBEAT) while the job "
                "started: stopped, or the machine or the network is gone"
            )
        else:
            what = f"{verb} lost while the job started: killed or crashed"
        return f"{who} {what}. See the log of {rank_names.ranks(self._lost)}."

    def _describe(self, rank: int) -> str:
        own = self.came.get(rank)
        if own is None:  # It died before this rank knew more of it.
            return f"rank {rank}" + (f" at {self._cluster.coordinator}" if rank == 0 else "")
        return rank_names.describe(rank, own)

    def _pause(self) -> None:
        if self._deadline.expired():
            self._try(self._read_who_came)
            raise errors.RendezvousTimeoutError(
                f"the job did not come together within {self._timeout:g} s. "
                + self._what_is_missing()
            )
        self._say_what_is_missing()
        self._deadline.pause()

    def _say_what_is_missing(self) -> None:
        """Says it once after a while, and to whoever asks by SIGUSR1."""
        stacks = self._stack_requests.take()
        seconds = time.monotonic() - self._begin
        # Of those that have reached rank 0, it alone speaks: all would ask it about all.
        speaks = self._cluster.rank == 0 or not self.store.was_joined
        is_due = speaks and seconds > _WORDS_SECONDS and not self._has_said
        if not is_due and not stacks:
            return
        self._has_said = self._has_said or is_due
        if not speaks:
            self._try(self._read_who_came)
        logging.warning(
            "tfdear: rank %d (host %s, pid %d) has waited %.0f s for the job to come together, of "
            "at most %g s (init_timeout). %s%s",
            self._cluster.rank,
            socket.gethostname(),
            os.getpid(),
            seconds,
            self._timeout,
            self._what_is_missing(),
            f" Its threads are at:\n{stacks.rstrip()}" if stacks else "",
        )

    def _what_is_missing(self) -> str:
        cluster = self._cluster
        if not self.came:
            return (
                f"Rank {cluster.rank} (host {socket.gethostname()}) could not reach rank 0 at "
                f"{cluster.coordinator} ({cluster.source}). Check that rank 0 runs, that this "
                f"address is right and that no firewall is between. {self._unreachable}"
            ).rstrip()
        return (
            rank_names.came(list(self.came), cluster.world_size)
            + f" The meeting point is {cluster.coordinator}. Check that the missing ranks were "
            "started, with this address, and see their logs."
        )
