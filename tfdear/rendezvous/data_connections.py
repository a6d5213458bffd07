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
import dataclasses
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from absl import logging

from tfdear import errors
from tfdear.base.names import Lane
from tfdear.rendezvous import certificates, guarded_sockets, store_records
from tfdear.rendezvous.guarded_sockets import seconds_left

# Who a connection is: magic, the job, the rank that connects, the group, its number in the group.
_HELLO = struct.Struct("<8s16sIHH")
_MAGIC = b"tfdear 1"
_WELCOME = b"welcome!"
_NAME = "data"  # Of where a rank listens.
_GROUPS = frozenset(int(lane) for lane in Lane)
# From here on numbers are for connections that belong to no group of the engine.
FIRST_FREE_GROUP = 256
# One stranger holds a place for so long at the most, and all together hold so many.
_HANDSHAKE_SECONDS = 5.0
_MOST_HANDSHAKES = 64
_BACKLOG = 1024
_LOG_SECONDS = 60.0  # Between two lines about one address.
_RETRY_SECONDS = 0.2
_LOOK_SECONDS = 1.0  # Between two looks whether the job still lives.


class Directory(Protocol):
    """Where ranks tell each other where they listen."""

    world_size: int
    # Of the job: others of the user may have the same secret.
    number: bytes
    # Raises when the job has ended.
    check_alive: Callable[[], None]

    def publish(self, name: str, value: str, timeout: float) -> None:
        """Tells this rank's value, instead of the one before."""

    def look_up(self, name: str, rank: int, timeout: float) -> str | None:
        """A rank's value; None: there is none within `timeout` seconds."""


class _NotOfThisJobError(Exception):
    """What connected is no rank of this job, or none that is expected."""


@dataclasses.dataclass(frozen=True)
class _Place:
    """One connection: its group, the peer, and its number among those of both."""

    group: int
    peer: int
    number: int


@dataclasses.dataclass(eq=False)
class _Handshake:
    """Somebody who has connected and is not known yet."""

    host: str
    connection: socket.socket


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
        self._server: ssl.SSLContext | None = None
        self._client: ssl.SSLContext | None = None
        if certificate is not None:
            self._server, self._client = guarded_sockets.contexts(certificate)
        self._address = address
        self._directory = directory
        self._lock = threading.Condition()
        # While anybody waits for peers, and how many do.
        self._listener: socket.socket | None = None
        self._waiting = 0
        # The connections that were welcomed, and those of them that nobody has asked for.
        self._admitted: set[_Place] = set()
        self._arrived: dict[_Place, socket.socket] = {}
        self._handshakes: list[_Handshake] = []  # In the order of their arrival.
        self._logged: dict[str, float] = {}
        self._is_closed = False

    def __enter__(self) -> DataConnections:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, group: int, ranks: Sequence[int], connections: int) -> list[list[int]]:
        """Sockets to members of a group, in their order; each of them calls it with this rank.

        Returns:
            For each of `ranks` its descriptors, which belong to the caller; none for this rank.

        Raises:
            PeerError: One did not come in time.
        """
        awaits = any(peer > self._rank for peer in ranks)
        with self._listening() if awaits else contextlib.nullcontext():
            return self._connect(group, ranks, connections)

    def _connect(self, group: int, ranks: Sequence[int], connections: int) -> list[list[int]]:
        deadline = time.monotonic() + self._timeout
        sockets: dict[_Place, socket.socket] = {}
        places = [_Place(group, peer, i) for peer in ranks for i in range(connections)]
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
            [sockets[_Place(group, peer, i)].detach() for i in range(connections)]
            if peer != self._rank
            else []
            for peer in ranks
        ]

    def close(self) -> None:
        """Closes the port, and what nobody has asked for; ends those who wait for peers."""
        with self._lock:
            self._is_closed = True
            rest = list(self._arrived.values())
            self._arrived.clear()
            self._stop_listening()
            self._lock.notify_all()
        for connection in rest:
            connection.close()

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Listens in the meantime. See [Note: when a rank listens]."""
        with self._lock:
            self._check()
            opened = self._listen() if self._listener is None else None
            self._waiting += 1
        try:
            if opened is not None:
                host, port = opened.getsockname()[:2]
                self._directory.publish(
                    _NAME, json.dumps({"host": host, "port": port}), self._timeout
                )
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                if self._waiting == 0:
                    self._stop_listening()

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        listener = socket.create_server((self._address, 0), family=family, backlog=_BACKLOG)
        self._listener = listener
        threading.Thread(
            target=self._accept, args=(listener,), name="tfdear-data-listener", daemon=True
        ).start()
        return listener

    def _stop_listening(self) -> None:
        for handshake in self._handshakes:
            guarded_sockets.end(handshake.connection)
        if self._listener is not None:
            # Wakes the thread that accepts, which a mere close does not.
            guarded_sockets.end(self._listener)
            self._listener.close()
            self._listener = None

    # Connecting.

    def _dial(self, place: _Place, deadline: float) -> socket.socket:
        error: Exception | None = None
        while True:
            self._check()
            address = self._address_of(place.peer, deadline)
            try:
                if address is not None:
                    return self._greet(place, address, min(deadline, _soon()))
            except (OSError, _NotOfThisJobError) as refusal:
                # It may have had to make room, as under a flood of strangers; or does not listen.
                error = refusal
            if time.monotonic() + _RETRY_SECONDS > deadline:
                where = f" at {address[0]}:{address[1]}" if address else ""
                why = str(error) if error else "it has not said where it listens"
                raise errors.PeerError(
                    f"no connection to rank {place.peer}{where} within {self._timeout:g} s: {why}. "
                    "Did it end, or does a firewall stand between?",
                    place.peer,
                )
            if address is not None:
                time.sleep(_RETRY_SECONDS)

    def _address_of(self, rank: int, deadline: float) -> tuple[str, int] | None:
        """Where a rank listens, or listened last; None: it is not known yet."""
        text = self._directory.look_up(_NAME, rank, min(seconds_left(deadline), _LOOK_SECONDS))
        return None if text is None else store_records.data_address(f"{_NAME}/{rank}", text)

    def _check(self) -> None:
        """Raises when it makes no sense to wait any longer: what ended the job, if it ended."""
        self._directory.check_alive()
        if self._is_closed:
            raise errors.TfdearError("the connections of this rank were closed meanwhile")

    def _greet(self, place: _Place, address: tuple[str, int], deadline: float) -> socket.socket:
        connection = socket.create_connection(address, timeout=seconds_left(deadline))
        try:
            if self._client is not None:
                name = certificates.name_of(place.peer)
                connection = guarded_sockets.wrap(connection, self._client, server_hostname=name)
                guarded_sockets.shake_hands(connection, deadline)
            number = self._directory.number
            hello = _HELLO.pack(_MAGIC, number, self._rank, place.group, place.number)
            guarded_sockets.send(connection, hello, deadline)
            if guarded_sockets.receive(connection, len(_WELCOME), deadline) != _WELCOME:
                raise _NotOfThisJobError("it is not expected there")
            return guarded_sockets.unguard(connection, deadline)
        except BaseException:
            connection.close()
            raise

    def _await(self, place: _Place, deadline: float) -> socket.socket:
        while True:
            self._check()
            with self._lock:
                if place in self._arrived:
                    return self._arrived.pop(place)
                left = seconds_left(deadline)
                if left == 0:
                    raise errors.PeerError(
                        f"rank {place.peer} did not connect within {self._timeout:g} s to "
                        f"{self._address}. Did it end, or does a firewall stand between?",
                        place.peer,
                    )
                self._lock.wait(min(left, _LOOK_SECONDS))

    # Listening.

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, address = listener.accept()
            except OSError as error:
                with self._lock:
                    if self._listener is not listener:
                        return
                # Out of descriptors, most likely: those of strangers are freed soon.
                logging.warning("tfdear: rank %d cannot accept: %s", self._rank, error)
                time.sleep(_RETRY_SECONDS)
                continue
            with self._lock:
                if self._listener is not listener:
                    connection.close()
                    return
                self._make_room()
                handshake = _Handshake(str(address[0]), connection)
                self._handshakes.append(handshake)
            threading.Thread(
                target=self._welcome, args=(handshake,), name="tfdear-handshake", daemon=True
            ).start()

    def _make_room(self) -> None:
        """Ends the oldest handshake of the address that has most: ranks need milliseconds."""
        if len(self._handshakes) < _MOST_HANDSHAKES:
            return
        hosts = [one.host for one in self._handshakes]
        greediest = max(set(hosts), key=hosts.count)
        oldest = next(one for one in self._handshakes if one.host == greediest)
        self._handshakes.remove(oldest)
        guarded_sockets.end(oldest.connection)

    def _welcome(self, handshake: _Handshake) -> None:
        deadline = _soon()
        try:
            if self._server is not None:
                handshake.connection = guarded_sockets.wrap(
                    handshake.connection, self._server, server_side=True
                )
                guarded_sockets.shake_hands(handshake.connection, deadline)
            hello = guarded_sockets.receive(handshake.connection, _HELLO.size, deadline)
            place = self._place_of(handshake.connection, hello)
            self._admit(handshake, place)
            try:
                guarded_sockets.send(handshake.connection, _WELCOME, deadline)
                handshake.connection = guarded_sockets.unguard(handshake.connection, deadline)
            except BaseException:
                with self._lock:
                    self._admitted.discard(place)
                raise
            with self._lock:
                if self._is_closed:
                    raise _NotOfThisJobError("it came too late")
                self._arrived[place] = handshake.connection
                self._lock.notify_all()
        except (OSError, ValueError, _NotOfThisJobError) as error:
            handshake.connection.close()
            self._note(handshake.host, error)
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._handshakes.remove(handshake)

    def _admit(self, handshake: _Handshake, place: _Place) -> None:
        """Before it is welcomed, as the peer then has its connection: no stranger may end it."""
        with self._lock:
            if handshake not in self._handshakes:
                raise _NotOfThisJobError("it had to make room")
            if place in self._admitted:
                raise _NotOfThisJobError("it is there already")
            self._handshakes.remove(handshake)
            self._admitted.add(place)

    def _place_of(self, connection: socket.socket, hello: bytes) -> _Place:
        magic, job, rank, group, number = _HELLO.unpack(hello)
        if magic != _MAGIC or job != self._directory.number:
            raise _NotOfThisJobError("it belongs to another job")
        if not self._rank < rank < self._directory.world_size:
            raise _NotOfThisJobError(f"it says that it is rank {rank}")
        if group not in _GROUPS and group < FIRST_FREE_GROUP:
            raise _NotOfThisJobError(f"it is for group {group}, which there is not")
        if isinstance(connection, ssl.SSLSocket):
            names = dict(connection.getpeercert() or {}).get("subjectAltName", ())
            if ("DNS", certificates.name_of(rank)) not in names:
                raise _NotOfThisJobError(f"it is not rank {rank}, as it says")
        return _Place(group, rank, number)

    def _note(self, host: str, error: Exception) -> None:
        now = time.monotonic()
        with self._lock:
            if self._is_closed or now - self._logged.get(host, -_LOG_SECONDS) < _LOG_SECONDS:
                return
            self._logged[host] = now
        logging.info(
            "tfdear: rank %d turned away a connection from %s: %s", self._rank, host, error
        )


def _soon() -> float:
    return time.monotonic() + _HANDSHAKE_SECONDS
