# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where the ranks meet: the store that they share, and facts about every rank."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tfdear import errors
from tfdear.measure import clock
from tfdear.rendezvous import (
    addresses,
    coordination,
    nodes,
    process_exit,
    rank_names,
    start,
    store_records,
    tf_server,
)
from tfdear.rendezvous import cluster as cluster_lib

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
        return addresses.meets_on_loopback(self.cluster)

    @property
    def listen_address(self) -> str:
        """The address of this rank that the other ranks can reach; loopback on one machine."""
        if self.on_one_machine:
            return "127.0.0.1"
        # The coordinator first. Rank 0 cannot see its own interface that way (Debian maps a
        # machine's own name to 127.0.1.1), but finds it on the way to any rank elsewhere.
        hosts = [cluster_lib.split_address(self.cluster.coordinator, "coordinator")[0]]
        hosts += [str(facts["address"]) for facts in self.facts_of_rank if facts.get("address")]
        addresses = [addresses.address_towards(host) for host in hosts]
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
                    published = json.dumps(values)
                    self._ask(self.store.insert, f"{path}-all", published, deadline=deadline)
                    return values
            else:
                text = self._ask(self.store.try_get, f"{path}-all", deadline=deadline)
                if text is not None:
                    return store_records.values_of_ranks(f"{path}-all", text, self.world_size)
            self.check_alive()
            if deadline.expired():
                break
            deadline.pause()
        came = self.store.directory(path, timeout=coordination.CALL_SECONDS)
        raise errors.RendezvousTimeoutError(
            f"the exchange of {name!r} was not complete after {timeout:g} s. "
            + rank_names.came(
                [store_records.number_of_rank(path, r) for r in came], self.world_size
            )
            + " See the logs of those missing."
        )

    def _ask(
        self, call: Callable[..., _Answer], *arguments: str, deadline: coordination.Deadline
    ) -> _Answer:
        """The store's answer. Asks again until the deadline: one hiccup is not the end of a job."""
        while True:
            try:
                return call(*arguments, timeout=coordination.CALL_SECONDS)
            except errors.StoreUnavailableError:
                self.check_alive()
                if deadline.expired():
                    raise
                deadline.pause()

    def dead_tasks(self) -> dict[int, str]:
        """Ranks whose heartbeats stopped, each with the coordination service's reason."""
        return self.store.unhealthy_tasks(self.world_size, timeout=coordination.CALL_SECONDS)


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
        "address": addresses.address_towards(
            cluster_lib.split_address(cluster.coordinator, "coordinator")[0]
        ),
    }

    own["common"]["TensorFlow"] = tf_server.tensorflow_version()
    tf_server.require_fresh_context()
    if cluster.rank == 0:
        tf_server.require_free_port(cluster.coordinator)
    meeting = start.Meeting(cluster, timeout, heartbeat)
    try:
        facts_of_rank = meeting.run(own)
    except errors.RendezvousError as error:
        # TensorFlow's connect may still wait in its thread, and cannot be called off.
        process_exit.leave_without_teardown(1)
        meeting.refuse(str(error))
        raise
    tf_server.restore_signal_handlers()
    return Rendezvous(cluster, meeting.store, facts_of_rank, heartbeat)
