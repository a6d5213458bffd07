# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The job as a rank sees it: the store that all ranks share, and what each told about itself."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tensorflow as tf

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
_LEAVE_SECONDS = 1.0


class Rendezvous:
    """The job as this rank sees it, and the store that all ranks share. Made by `connect`.

    The descriptions are what every rank told about itself at the start.
    """

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        service: store_service.StoreService | None,
        certificate: certificates.Certificate | None,
        descriptions: list[dict[str, Any]],
        heartbeat: float,
    ):
        self.rank = cluster.rank
        self.world_size = cluster.world_size
        self.cluster = cluster
        self.store = store
        self._service = service
        # By which other ranks know this one; None: they ask nobody (TFDEAR_INSECURE=1).
        self.certificate = certificate
        self.descriptions = descriptions
        self.heartbeat = heartbeat
        # The node of every rank.
        self.nodes = nodes.of_ranks(descriptions)
        self._exchanges: dict[str, int] = {}
        # Whoever uses it alone need not close it.
        self.ending = Ending()
        self.ending.add(self.close)
        # Set by the monitor. Raises when the job was aborted, so that no rank goes on polling the
        # store for one that will not come.
        self.check_alive: Callable[[], None] = lambda: None

    @property
    def host_names(self) -> list[str]:
        """The host name of every rank."""
        return [str(own["host"]) for own in self.descriptions]

    @property
    def hosts(self) -> list[str]:
        """The address of every rank's node, or the host name where the address is not known."""
        return [str(own.get("address") or own["host"]) for own in self.descriptions]

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
        hosts = [split_address(self.cluster.coordinator, "coordinator")[0]]
        hosts += [str(own["address"]) for own in self.descriptions if own.get("address")]
        found = (addresses.address_towards(host) for host in hosts)
        return next((a for a in found if a and not is_loopback(a)), "127.0.0.1")

    def describe(self, rank: int) -> str:
        """ "rank 2 (host h, pid 123)", for messages."""
        return rank_names.describe(rank, self.descriptions[rank])

    def exchange(self, name: str, value: str, timeout: float) -> list[str]:
        """Gives every rank the values of all, in rank order. All must call it, in the same order.

        The name, which may be used repeatedly, is for the RendezvousTimeoutError: it says which
        ranks did not come within `timeout` seconds.
        """
        self._exchanges[name] = self._exchanges.get(name, 0) + 1
        path = f"exchange/{name}/{self._exchanges[name]}"
        collected = f"exchanged/{name}/{self._exchanges[name]}"
        deadline = Deadline(timeout)
        self._ask(self.store.insert, f"{path}/{self.rank}", value, deadline=deadline)
        # Rank 0 collects the values, and all are told of them together.
        while True:
            text = self._ask(self.store.told_value, collected, deadline=deadline)
            if text is not None:
                self.store.forget(path)
                self.store.forget(collected)
                return store_records.values_of_ranks(collected, text, self.world_size)
            if self.rank == 0:
                came = self._ask(self.store.told, path, deadline=deadline)
                if came.keys() >= {str(rank) for rank in range(self.world_size)}:
                    values = [came[str(rank)] for rank in range(self.world_size)]
                    text = json.dumps(values)
                    self._ask(self.store.insert, collected, text, deadline=deadline)
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

    def _ask(self, call: Callable[..., _Answer], *arguments: str, deadline: Deadline) -> _Answer:
        """The store's answer. Retries until the deadline: one hiccup is not the end of a job."""
        while True:
            try:
                return call(*arguments, timeout=CALL_SECONDS)
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

    def close(self) -> None:
        """Ends this rank's part; rank 0's service ends with it."""
        self.store.leave()
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
    (its version), "backend", "device", ... The world size and TensorFlow's version are compared in
    any case.

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
        "common": {"world size": cluster.world_size, **common, "TensorFlow": tf.__version__},
        "host": socket.gethostname(),
        "boot": clock.boot(),
        "pid": os.getpid(),
        "node": cluster.node_rank,
        "address": addresses.address_towards(split_address(cluster.coordinator, "coordinator")[0]),
    }
    meeting = start.Meeting(cluster, timeout, heartbeat)
    try:
        descriptions = meeting.run(own)
    except errors.RendezvousError as error:
        meeting.refuse(error)
        raise
    return Rendezvous(
        cluster, meeting.store, meeting.service, meeting.certificate, descriptions, heartbeat
    )
