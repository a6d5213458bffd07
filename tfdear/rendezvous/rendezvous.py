# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where the ranks meet: start of the job, a key-value store, facts about every rank."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from absl import logging

from tfdear import errors
from tfdear.measure import clock
from tfdear.rendezvous import cluster as cluster_lib
from tfdear.rendezvous import coordination, liveness, nodes, process_exit, rank_names, store_records

# What to do when the ranks differ in one of these.
_ADVICE = {
    "world size": "Start every rank of the job with the same cluster description.",
    "tfdear": "Install the same version of tfdear on every machine.",
    "TensorFlow": "Install the same version of TensorFlow on every machine.",
    "backend": "Give DearStrategy the same backend on every rank.",
    "device": "Give every rank the same kind of device, or hide the GPUs from all of them.",
}
_CALL_SECONDS = 10.0  # one request to the store; retried until the deadline of the caller
# A refused connection to rank 0 on this machine, where it has answered before, for so long.
_REFUSED_SECONDS = 1.5
_GRACE_SECONDS = 5.0  # ranks that do not fit together are refused after this time at the latest
_GO = "go"  # the verdict that all ranks start; any other verdict is the reason why not
_REFUSAL_SECONDS = 10.0  # rank 0 stays so long for the others to read why the job does not start


_Answer = TypeVar("_Answer")


class Rendezvous:
    """The job as this rank sees it, and the store that all ranks share. Made by `connect`.

    Args:
        cluster: this process's place in the job.
        store: what all ranks share.
        facts_of_rank: what every rank told about itself at the start.
        heartbeat: seconds without a sign of life after which a rank is given up.
    """

    def __init__(
        self,
        cluster: cluster_lib.Cluster,
        store: coordination.CoordinationClient,
        facts_of_rank: list[dict[str, Any]],
        heartbeat: float,
    ):
        self.rank = cluster.rank
        self.world_size = cluster.world_size
        self.cluster = cluster
        self.store = store
        self.facts_of_rank = facts_of_rank
        self.heartbeat = heartbeat
        # The node of every rank.
        self.nodes = nodes.of_ranks(facts_of_rank)
        self._exchanges: dict[str, int] = {}
        # The monitor sets this; it raises when the job was given up, so that no rank waits in the
        # store for one that will not come.
        self.check_alive: Callable[[], None] = lambda: None

    @property
    def host_names(self) -> list[str]:
        """The host name of every rank."""
        return [str(facts["host"]) for facts in self.facts_of_rank]

    @property
    def hosts(self) -> list[str]:
        """The address of every rank's host, or its name where the address is not known."""
        return [str(facts.get("address") or facts["host"]) for facts in self.facts_of_rank]

    @property
    def on_one_machine(self) -> bool:
        """True when the job meets on the loopback interface, so that no rank can be elsewhere."""
        return _meets_on_loopback(self.cluster)

    @property
    def listen_address(self) -> str:
        """The address of this rank that the other ranks can reach; loopback on one machine."""
        if self.on_one_machine:
            return "127.0.0.1"
        # The coordinator first. Rank 0 cannot see its own interface that way (Debian maps a
        # machine's own name to 127.0.1.1), but finds it on the way to any rank elsewhere.
        hosts = [cluster_lib.split_address(self.cluster.coordinator, "coordinator")[0]]
        hosts += [str(facts["address"]) for facts in self.facts_of_rank if facts.get("address")]
        addresses = [_address_towards(host) for host in hosts]
        outside = [a for a in addresses if a and not cluster_lib.is_loopback(a)]
        return outside[0] if outside else "127.0.0.1"

    def describe(self, rank: int) -> str:
        """ "rank 2 (host h, pid 123)", for messages."""
        return rank_names.describe(rank, self.facts_of_rank[rank])

    def exchange(self, name: str, value: str, timeout: float) -> list[str]:
        """Gives every rank the values of all ranks. All ranks must call it, in the same order.

        Args:
            name: what is exchanged, for the error message; may be used again and again.
            value: this rank's value.
            timeout: seconds to wait for the last rank.

        Returns:
            One value per rank, in rank order.

        Raises:
            RendezvousTimeoutError: a rank did not come in time; the text names those missing.
        """
        self._exchanges[name] = self._exchanges.get(name, 0) + 1
        path = f"exchange/{name}/{self._exchanges[name]}"
        deadline = coordination.Deadline(timeout)
        self._ask(self.store.insert, f"{path}/{self.rank}", value, deadline=deadline)
        # Rank 0 collects and publishes the whole: P readers of one key instead of P of P keys.
        while True:
            if self.rank == 0:
                came = self._ask(self.store.directory, path, deadline=deadline)
                if came.keys() >= {str(rank) for rank in range(self.world_size)}:
                    values = [came[str(rank)] for rank in range(self.world_size)]
                    text = json.dumps(values)
                    self._ask(self.store.insert, f"{path}-all", text, deadline=deadline)
                    return values
            else:
                text = self._ask(self.store.try_get, f"{path}-all", deadline=deadline)
                if text is not None:
                    return store_records.values_of_ranks(f"{path}-all", text, self.world_size)
            self.check_alive()
            if deadline.expired():
                break
            deadline.pause()
        came = self.store.directory(path, timeout=_CALL_SECONDS)
        raise errors.RendezvousTimeoutError(
            f"the exchange of {name!r} was not complete after {timeout:g} s. "
            + _who_came([store_records.number_of_rank(path, r) for r in came], self.world_size)
            + " See the logs of those missing."
        )

    def _ask(
        self, call: Callable[..., _Answer], *arguments: str, deadline: coordination.Deadline
    ) -> _Answer:
        """The store's answer. Asks again until the deadline: one hiccup is not the end of a job."""
        while True:
            try:
                return call(*arguments, timeout=_CALL_SECONDS)
            except errors.StoreUnavailableError:
                self.check_alive()
                if deadline.expired():
                    raise
                deadline.pause()

    def dead_tasks(self) -> dict[int, str]:
        """Ranks whose heartbeats stopped, each with the coordination service's reason."""
        return self.store.unhealthy_tasks(self.world_size, timeout=_CALL_SECONDS)


def connect(
    cluster: cluster_lib.Cluster,
    *,
    timeout: float = 300.0,
    heartbeat: float = 10.0,
    facts: Mapping[str, str],
) -> Rendezvous:
    """Brings all ranks together; call it once, before TensorFlow does anything.

    Args:
        cluster: from `cluster.discover`.
        timeout: seconds to wait for the last rank. Default 300.
        heartbeat: seconds without a sign of life after which a rank is given up. Default 10.
        facts: what must be the same on every rank, by name: "tfdear" (its version), "backend",
            "device", ... The world size and TensorFlow's version are compared in any case.

    Returns:
        The `Rendezvous`.

    Raises:
        RuntimeError: TensorFlow is in use already.
        RendezvousTimeoutError: not all ranks came; the text lists those that did not.
        MismatchError: the ranks differ in `facts` or in the world size; the text says who has what.
        RendezvousError: the port is taken, two processes claim one rank, or TensorFlow failed.
    """
    own: dict[str, Any] = {
        "common": {"world size": cluster.world_size, **facts},
        "host": socket.gethostname(),
        "boot": clock.boot(),
        "pid": os.getpid(),
        "node": cluster.node_rank,
        "address": _address_towards(
            cluster_lib.split_address(cluster.coordinator, "coordinator")[0]
        ),
    }

    from tfdear.rendezvous import (
        tf_server,  # TensorFlow is not needed by the readers of this module
    )

    own["common"]["TensorFlow"] = tf_server.tensorflow_version()
    tf_server.require_fresh_context()
    if cluster.rank == 0:
        tf_server.require_free_port(cluster.coordinator)
    meeting = _Meeting(cluster, timeout, heartbeat)
    try:
        facts_of_rank = meeting.run(own)
    except errors.RendezvousError as error:
        # TensorFlow's connect may still wait in its thread, and cannot be called off.
        process_exit.leave_without_teardown(1)
        meeting.refuse(str(error))
        raise
    tf_server.restore_signal_handlers()
    return Rendezvous(cluster, meeting.store, facts_of_rank, heartbeat)


class _Meeting:
    """The start of a job, seen from one rank."""

    def __init__(self, cluster: cluster_lib.Cluster, timeout: float, heartbeat: float):
        from tfdear.rendezvous import tf_server

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
            mismatch = _mismatch(self._came)
            raise (errors.MismatchError if mismatch else errors.RendezvousError)(verdict)
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
        mismatch = _mismatch(self._came)
        if mismatch:
            # The others are on their way; with them the text tells the whole story.
            self._mismatch_grace = self._mismatch_grace or coordination.Deadline(_GRACE_SECONDS)
            if len(self._came) >= self._cluster.world_size or self._mismatch_grace.expired():
                raise errors.MismatchError(mismatch)
        return not mismatch

    def _pulse(self) -> bool:
        self._liveness.pulse(self._call_seconds())
        return True

    def _leave(self) -> bool:
        self._liveness.leave(self._call_seconds())
        return True

    def _call_seconds(self) -> float:
        # Several calls fit into a heartbeat, so that the silence of rank 0 is noticed in time.
        longest = min(_CALL_SECONDS, max(self._heartbeat / 4, 1.0))
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
        if _meets_on_loopback(self._cluster) and refused > _REFUSED_SECONDS:
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
            + _who_came(list(self._came), cluster.world_size)
            + f" The meeting point is {cluster.coordinator}. Check that the missing ranks were "
            "started, with this address, and see their logs."
        )


def _meets_on_loopback(cluster: cluster_lib.Cluster) -> bool:
    return cluster_lib.is_loopback(cluster_lib.split_address(cluster.coordinator, "address")[0])


def _address_towards(host: str) -> str | None:
    """This machine's address on the way to `host`; None when there is no way."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing: it only chooses the interface
            return probe.getsockname()[0]
    except OSError:
        return None


def _who_came(came: list[int], world_size: int) -> str:
    missing = sorted(set(range(world_size)) - set(came))
    return f"Ranks that came: {rank_names.numbers(came)}; missing: {rank_names.numbers(missing)}."


def _mismatch(facts_of_rank: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Who has what, when the ranks that came do not fit together."""
    lines = []
    for name in dict.fromkeys(name for facts in facts_of_rank.values() for name in facts["common"]):
        ranks_of_value: dict[str, list[int]] = {}
        for rank, facts in sorted(facts_of_rank.items()):
            ranks_of_value.setdefault(str(facts["common"].get(name)), []).append(rank)
        if len(ranks_of_value) > 1:
            who = "; ".join(
                f"{value} on {rank_names.ranks(ranks)}" for value, ranks in ranks_of_value.items()
            )
            advice = _ADVICE.get(name, "Make it the same everywhere.")
            lines.append(f"{name}: {who}. {advice}")
    if not lines:
        return None
    return "the ranks of this job do not fit together. " + " ".join(lines)
