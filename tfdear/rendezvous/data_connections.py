# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The connections that carry data between ranks: made here, used by the engine.

[Note: who may connect]
A rank listens, on one port, while it waits for peers. Whoever connects proves by mutual TLS that it
knows the job's secret, before anything else of it is looked at; then it says which connection of
which rank it is, in a message of fixed length. After that TLS ends, and the plain socket goes to
the engine: who is at its other end is known, but not that nobody on the way changes what it
carries. With TFDEAR_TLS=1 the engine encrypts it again, by a library of its own and with a key that
follows from the secret.

[Note: when a rank listens]
Connections are made when they are first needed, by all ranks that need them: a sum among a thousand
ranks needs ten to each rank, and a group that a script does not use none. The higher rank of two
comes to the lower one, which opens a port, publishes it, and closes it when the last of its peers
is there. A peer that looks for this rank at another time finds no port, or a closed one, and looks
again; one that comes for another group while the port is open is let in, and kept until this rank
wants it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Protocol

from tfdear import errors
from tfdear.base import descriptors
from tfdear.rendezvous import certificates, data_listener, guarded_sockets, store_records
from tfdear.rendezvous.data_listener import MAGIC, WELCOME, NotOfThisJobError, Place
from tfdear.rendezvous.guarded_sockets import seconds_left

_NAME = "data"  # Of where a rank listens.
_LOOK_SECONDS = 1.0  # Between two looks whether the job still lives.


class Directory(Protocol):
    """Where ranks tell each other where they listen."""

    world_size: int
    # Of the job: others of the user may have the same secret.
    number: bytes

    def publish(self, name: str, value: str) -> None:
        """Tells this rank's value, instead of the one before."""

    def look_up(
        self, name: str, rank: int, timeout: float, other_than: str | None = None
    ) -> str | None:
        """A rank's value; it waits for one, and for another one than that, for `timeout` seconds.

        As `publish` it raises a StoreUnavailableError when it cannot ask now.
        """

    def check(self, rank: int) -> None:
        """Raises when the job has ended, or this rank will not come any more."""


class DataConnections:
    """This rank's connections to others, for all groups of a job. Use it in a `with` statement.

    Args:
        rank: This rank.
        address: The address on which it listens, which the other ranks can reach.
        certificate: This rank's; None: whoever comes is let in (TFDEAR_INSECURE=1).
        directory: Where ranks publish where they listen.
        timeout: Seconds within which a peer must be there.
    """

    def __init__(
        self,
        rank: int,
        address: str,
        certificate: certificates.Certificate | None,
        directory: Directory,
        timeout: float,
    ):
        self._rank = rank
        self._timeout = timeout
        server: ssl.SSLContext | None = None
        self._client: ssl.SSLContext | None = None
        if certificate is not None:
            server, self._client = guarded_sockets.contexts(certificate)
        self._directory = directory
        self.listener = data_listener.DataListener(
            rank, address, server, directory.world_size, directory.number
        )
        # Where ranks listened when they were asked last.
        self._known: dict[int, str] = {}

    def __enter__(self) -> DataConnections:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, group: int, ranks: Sequence[int], numbers: range) -> list[list[int]]:
        """Sockets to members of a group, in their order; each of them calls it with this rank.

        Args:
            group: Of connections that are told from those of other groups.
            ranks: The members; this rank may be among them.
            numbers: Of the connections to each of them that are made now.

        Returns:
            For each of `ranks` its descriptors, which belong to the caller; none for this rank.

        Raises:
            PeerError: One did not come in time.
        """
        awaits = any(peer > self._rank for peer in ranks)
        with self.listener.listening() if awaits else contextlib.nullcontext() as opened:
            if opened is not None:
                host, port = opened
                self._publish(json.dumps({"host": host, "port": port}))
            return self._connect(group, ranks, numbers)

    def close(self) -> None:
        """Closes the port, and what nobody has asked for; ends those who wait for peers."""
        self.listener.close()

    def _connect(self, group: int, ranks: Sequence[int], numbers: range) -> list[list[int]]:
        deadline = time.monotonic() + self._timeout
        sockets: dict[Place, socket.socket] = {}
        places = [Place(group, peer, number) for peer in ranks for number in numbers]
        try:
            # The higher rank of two connects.
            for place in places:
                if place.peer < self._rank:
                    sockets[place] = self._dial(place, deadline)
            for place in places:
                if place.peer > self._rank:
                    sockets[place] = self._await(place, deadline)
        except BaseException:
            for connection in sockets.values():
                connection.close()
            raise
        return [
            [sockets[Place(group, peer, number)].detach() for number in numbers]
            if peer != self._rank
            else []
            for peer in ranks
        ]

    def _publish(self, text: str) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._directory.publish(_NAME, text)
            except errors.StoreUnavailableError:
                # Rank 0's interpreter may be busy; it may also have gone, and never answer again.
                self._check(0)
                if time.monotonic() > deadline:
                    raise
            time.sleep(data_listener.RETRY_SECONDS)

    # Connecting.

    def _dial(self, place: Place, deadline: float) -> socket.socket:
        error: Exception | None = None
        while True:
            self._check(place.peer)
            address = self._address_of(place.peer)
            try:
                if address is not None:
                    return self._greet(place, address, deadline)
            except (OSError, NotOfThisJobError) as refusal:
                if getattr(refusal, "errno", None) in (errno.EMFILE, errno.ENFILE):
                    raise self._too_many(refusal) from None
                # It may have had to make room, as under a flood of strangers; or does not listen.
                error = refusal
                self._forget_address_of(place.peer, deadline)
            if time.monotonic() + data_listener.RETRY_SECONDS > deadline:
                where = f" at {address[0]}:{address[1]}" if address else ""
                why = str(error) if error else "it has not said where it listens"
                raise _late(
                    f"no connection to rank {place.peer}{where} within {self._timeout:g} s: {why}. "
                    "Did it end, or does a firewall stand between?",
                    place.peer,
                )

    def _too_many(self, error: Exception) -> errors.TfdearError:
        too_many = errors.TfdearError(
            f"rank {self._rank} cannot open another connection: {error}. It may have "
            f"{descriptors.limit()} files and connections open: raise the hard limit of open files "
            "(`ulimit -Hn`), or close files."
        )
        too_many.kind = "resource_exhausted"
        return too_many

    def _address_of(self, rank: int) -> tuple[str, int] | None:
        """Where a rank listens, or listened last; None: it is not known yet."""
        text = self._known.get(rank) or self._look_up(rank, None, _LOOK_SECONDS)
        if text is None:
            return None
        self._known[rank] = text
        return store_records.data_address(f"{_NAME}/{rank}", text)

    def _forget_address_of(self, rank: int, deadline: float) -> None:
        """Waits a moment for another one; the same may do, too, when a flood is over."""
        time.sleep(data_listener.RETRY_SECONDS)
        seconds = min(seconds_left(deadline), _LOOK_SECONDS)
        text = self._look_up(rank, self._known.pop(rank, None), seconds)
        if text is not None:
            self._known[rank] = text

    def _look_up(self, rank: int, other_than: str | None, seconds: float) -> str | None:
        try:
            return self._directory.look_up(_NAME, rank, seconds, other_than)
        except errors.StoreUnavailableError:
            # As in _publish().
            self._check(0)
            time.sleep(data_listener.RETRY_SECONDS)
            return None

    def _check(self, rank: int) -> None:
        """Raises when it makes no sense to wait any longer: what ended the job, if it ended."""
        self._directory.check(rank)
        if self.listener.is_closed:
            raise errors.TfdearError(data_listener.CLOSED)

    def _greet(self, place: Place, address: tuple[str, int], last_deadline: float) -> socket.socket:
        deadline = min(last_deadline, _soon())
        connection = socket.create_connection(address, timeout=seconds_left(deadline))
        try:
            if self._client is not None:
                name = certificates.name_of(place.peer)
                connection = guarded_sockets.wrap(connection, self._client, server_hostname=name)
                guarded_sockets.shake_hands(connection, deadline)
            ends = (self._directory.number, self._rank, place.peer)
            hello = data_listener.HELLO.pack(MAGIC, *ends, place.group, place.number)
            guarded_sockets.send(connection, hello, deadline)
            if guarded_sockets.receive(connection, len(WELCOME), deadline) != WELCOME:
                raise NotOfThisJobError("it is not expected there")
            deadline = min(last_deadline, time.monotonic() + data_listener.PATIENCE_SECONDS)
            guarded_sockets.send(connection, data_listener.CONFIRMATION, deadline)
            return guarded_sockets.unguard(connection, deadline)
        except BaseException:
            connection.close()
            raise

    def _await(self, place: Place, deadline: float) -> socket.socket:
        while True:
            left = seconds_left(deadline)
            connection = self.listener.take(place, min(left, _LOOK_SECONDS))
            if connection is not None:
                return connection
            self._check(place.peer)
            if left == 0:
                raise _late(
                    f"rank {place.peer} did not connect within {self._timeout:g} s to "
                    f"{self.listener.address}. Did it end, or does a firewall stand between?",
                    place.peer,
                )


def _late(message: str, peer: int) -> errors.PeerError:
    error = errors.PeerError(message, peer)
    error.kind = "deadline_exceeded"
    return error


def _soon() -> float:
    return time.monotonic() + data_listener.HANDSHAKE_SECONDS
