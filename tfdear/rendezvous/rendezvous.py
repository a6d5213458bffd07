# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The job as a rank sees it: the store that all ranks share, and what each told about itself."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tfdear import errors
from tfdear.base.deadline import Deadline
from tfdear.base.ending import Ending
from tfdear.measure import clock
from tfdear.rendezvous import (
    addresses,
    certificates,
    interfaces,
    nodes,
    rank_names,
    start,
    store_records,
    store_service,
)
from tfdear.rendezvous.cluster import Cluster, is_loopback, split_address
from tfdear.rendezvous.store import CALL_SECONDS, Store

_Answer = TypeVar("_Answer")

_LOOK_SECONDS = 0.1  # Between two looks whether the job still lives.
_WAIT_SECONDS = 1.0  # The same, while rank 0 holds a question back until there is an answer.
_LEAVE_SECONDS = 1.0
_DESCRIBE_SECONDS = 2.0  # Messages do not wait longer for a name.


class Rendezvous:
    """The job as this rank sees it, and the store that all ranks share. Made by `connect`.

    [Note: what a rank hears]
    Rank 0 must not become the bottleneck of a large job, so it tells every rank the same few bytes:
    a verdict with the numbers of the nodes. What else a rank wants to know of another one, such as
    its host name or where it listens, it asks for when it needs it. What would grow with the square
    of the number of ranks is for small texts, or small jobs: `exchange`.
    """

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        service: store_service.StoreService | None,
        certificate: certificates.Certificate | None,
        verdict: Mapping[str, Any],
        came: Mapping[int, dict[str, Any]],
        heartbeat: float,
    ):
        self.rank = cluster.rank
        self.world_size = cluster.world_size
        self.cluster = cluster
        self.store = store
        self._service = service
        # By which other ranks know this one; None: they ask nobody (TFDEAR_INSECURE=1).
        self.certificate = certificate
        self.heartbeat = heartbeat
        # The node of every rank.
        self.nodes = nodes.of_steps(verdict["node_steps"])
        # This job's number, which no other has.
        self.number = bytes.fromhex(verdict["job"])
        # What ranks told about themselves, as far as this one knows it.
        self._descriptions = dict(came)
        self._exchanges: dict[str, int] = {}
        # Whoever uses it alone need not close it.
        self.ending = Ending()
        self.ending.add(self.close)
        # Set by the monitor. Raises when the job was aborted, so that no rank goes on polling the
        # store for one that will not come.
        self.check_alive: Callable[[], None] = lambda: None

    def description(self, rank: int, timeout: float = CALL_SECONDS) -> dict[str, Any]:
        """What a rank told about itself at the start.

        Raises a StoreUnavailableError when rank 0, which knows it, does not answer.
        """
        if rank not in self._descriptions:
            text = self.store.try_get(f"start/rank/{rank}", timeout=timeout)
            self._descriptions.update(store_records.descriptions({str(rank): text or ""}))
        return self._descriptions[rank]

    def hosts(self) -> list[str]:
        """The address of every rank's node, or the host name where the address is not known."""
        read = functools.partial(self.store.directory, "start/rank", timeout=CALL_SECONDS)
        known = store_records.descriptions(self._ask(read, deadline=Deadline(CALL_SECONDS)))
        return [
            str(known[rank].get("address") or known[rank]["host"])
            for rank in range(self.world_size)
        ]

    @property
    def on_one_machine(self) -> bool:
        """True when the job meets on the loopback interface, so that no rank can be on another."""
        return addresses.meets_on_loopback(self.cluster)

    @property
    def listen_address(self) -> str:
        """The address of this rank that the other ranks can reach; loopback on one machine.

        That of the interface which TFDEAR_INTERFACE names, else that on the way to rank 0.
        """
        if self.on_one_machine:
            return "127.0.0.1"
        chosen = interfaces.chosen_address()
        if chosen is not None:
            return chosen
        # The coordinator first. Rank 0 cannot find its own interface that way (Debian maps a
        # machine's own name to 127.0.1.1), but finds it on the way to a rank on another machine.
        for host in self._hosts_to_reach():
            found = addresses.address_towards(host)
            if found and not is_loopback(found):
                return found
        return "127.0.0.1"

    def _hosts_to_reach(self) -> Iterator[str]:
        yield split_address(self.cluster.coordinator, "coordinator")[0]
        for rank in range(self.world_size):
            if address := self.description(rank).get("address"):
                yield str(address)

    def describe(self, rank: int) -> str:
        """ "rank 2 (host h, pid 123)", for messages; without host and pid if nobody can tell."""
        with contextlib.suppress(errors.TfdearError):
            return rank_names.describe(rank, self.description(rank, _DESCRIBE_SECONDS))
        return f"rank {rank}"

    def has_left(self, rank: int) -> bool:
        """Whether a rank's script has ended."""
        return self.store.has_told(f"monitor/left/{rank}")

    def publish(self, name: str, value: str) -> None:
        """Tells a text to every rank that looks it up; again: instead of the one before.

        Raises a StoreUnavailableError when rank 0 does not answer, as while its interpreter is
        busy: try again.
        """
        self.store.insert(f"{name}/{self.rank}", value, timeout=CALL_SECONDS, overwrite=True)

    def look_up(
        self, name: str, rank: int, timeout: float, other_than: str | None = None
    ) -> str | None:
        """What a rank has published; it waits `timeout` seconds, 10 at most, for it.

        With `other_than` it waits for another text than that, too. None: nothing is published.
        Raises a StoreUnavailableError as `publish`.
        """
        key = f"{name}/{rank}"
        return self.store.try_get(key, timeout=CALL_SECONDS, wait=timeout, other_than=other_than)

    def agree(
        self, name: str, value: str, decide: Callable[[list[str]], str], timeout: float
    ) -> str:
        """What rank 0 decides by the values of all, in rank order; told to all of them.

        All must call it, in the same order.

        The name, which may be used repeatedly, is for the RendezvousTimeoutError: it says which
        ranks did not come within `timeout` seconds.
        """
        self._exchanges[name] = self._exchanges.get(name, 0) + 1
        path = f"exchange/{name}/{self._exchanges[name]}"
        decided = f"exchanged/{name}/{self._exchanges[name]}"
        deadline = Deadline(timeout)
        insert = functools.partial(self.store.insert, timeout=CALL_SECONDS)
        self._ask(insert, f"{path}/{self.rank}", value, deadline=deadline)
        while True:
            text = self._ask(self.store.told_value, decided, deadline=deadline)
            if text is not None:
                self.store.forget(path)
                self.store.forget(decided)
                return text
            if self.rank == 0:
                came = self._ask(self.store.told, path, deadline=deadline)
                if came.keys() >= {str(rank) for rank in range(self.world_size)}:
                    text = decide([came[str(rank)] for rank in range(self.world_size)])
                    self._ask(insert, decided, text, deadline=deadline)
                    continue
            self.check_alive()
            if deadline.expired():
                break
            self.store.wait_for_news(min(_LOOK_SECONDS, deadline.remaining()))
        came = self.store.directory(path, timeout=CALL_SECONDS)
        raise errors.RendezvousTimeoutError(
            f"the exchange of {name!r} was not complete after {timeout:g} s. "
            + rank_names.came(
                [store_records.number_of_rank(path, r) for r in came], self.world_size
            )
            + " See the logs of those missing."
        )

    def exchange(self, name: str, value: str, timeout: float) -> list[str]:
        """Gives every rank the values of all, in rank order; else as `agree`."""
        text = self.agree(name, value, json.dumps, timeout)
        return store_records.values_of_ranks(f"exchanged/{name}", text, self.world_size)

    def exchange_among(
        self, ranks: Sequence[int], name: str, value: str, timeout: float
    ) -> list[str]:
        """The values of some ranks, which call it together with this one, in their order.

        Each asks rank 0 for those of the others, such as the ranks of its node. A name can be
        used once.
        """
        deadline = Deadline(timeout)
        self._ask(self.publish, name, value, deadline=deadline)
        values = {self.rank: value}
        for rank in ranks:
            look = functools.partial(self.look_up, name, rank, _WAIT_SECONDS)
            while rank not in values:
                text = self._ask(look, deadline=deadline)
                if text is not None:
                    values[rank] = text
                    continue
                self.check_alive()
                if deadline.expired():
                    raise errors.RendezvousTimeoutError(
                        f"{self.describe(rank)} has not told its {name!r} within {timeout:g} s. "
                        "See its log."
                    )
        return [values[rank] for rank in ranks]

    def _ask(self, call: Callable[..., _Answer], *arguments: str, deadline: Deadline) -> _Answer:
        """The store's answer. Retries until the deadline: one hiccup is not the end of a job."""
        while True:
            try:
                return call(*arguments)
            except errors.StoreUnavailableError:
                self.check_alive()
                if deadline.expired():
                    raise
                deadline.pause()

    def lost_ranks(self) -> dict[int, float]:
        """Ranks that are gone without a word, each with the seconds of silence before.

        0: its connection was closed, as the kernel does for a process that was killed.
        """
        return store_records.lost(self.store.told("lost"))

    def close(self, report: str | None = None) -> None:
        """Ends this rank's part, with its last report; rank 0's service ends with it."""
        self.store.leave(report)
        if self._service is not None:
            # For ranks that are about to leave, or to hear what rank 0 has heard; those that stay
            # have been waited for before.
            deadline = Deadline(_LEAVE_SECONDS)
            while self._service.present() and not deadline.expired():
                deadline.pause()
            self._service.stop()


def connect(
    cluster: Cluster,
    *,
    timeout: float = 300.0,
    heartbeat: float = 10.0,
    common: Mapping[str, str],
) -> Rendezvous:
    """Brings all ranks together.

    It waits `timeout` seconds for the last rank, and gives up a rank after `heartbeat` seconds
    without a sign of life. What must be the same on every rank is in `common`, by name: "tfdear"
    (its version), "backend", "device", ... The world size is compared in any case.

    Raises:
        ValueError: The job's secret is missing or open to others; or TFDEAR_INTERFACE names no
            interface of this machine.
        RendezvousTimeoutError: Not all ranks came; the text lists those that did not.
        MismatchError: The ranks differ in `common` or in the world size; the text says how.
        RendezvousError: The port is taken, two processes claim one rank, a rank died, or the ranks
            have different secrets.
    """
    interfaces.chosen_address()  # Before the others wait for this rank.
    own: dict[str, Any] = {
        "common": {"world size": cluster.world_size, **common},
        "host": socket.gethostname(),
        "boot": clock.boot(),
        "pid": os.getpid(),
        "node": cluster.node_rank,
        "address": addresses.address_towards(split_address(cluster.coordinator, "coordinator")[0]),
    }
    meeting = start.Meeting(cluster, timeout, heartbeat)
    try:
        meeting.listen()  # Where that fails another job may be there, which must not hear of it.
        try:
            verdict = meeting.run(own)
        except errors.RendezvousError as error:
            meeting.refuse(error)
            raise
    except BaseException:  # An interrupt, too: a notebook lives on.
        meeting.close()
        raise
    return Rendezvous(
        cluster,
        meeting.store,
        meeting.service,
        meeting.certificate,
        verdict,
        {**meeting.came, cluster.rank: own},
        heartbeat,
    )
