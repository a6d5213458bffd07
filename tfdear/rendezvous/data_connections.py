# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The connections that carry data between ranks: made here, used by the engine.

[Note: who may connect]
Every rank listens on one port while the job starts. Whoever connects proves by mutual TLS that it
knows the job's secret, before anything else of it is looked at; then it says which connection of
which rank it is, in a message of fixed length. After that TLS ends, and the plain socket goes to
the engine: who is at its other end is known, but not that nobody on the way changes what it
carries. With TFDEAR_TLS=1 the engine encrypts it again, by a library of its own and with a key that
follows from the secret. The port is closed when all peers are there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import secrets
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from absl import logging

from tfdear import errors
from tfdear.base.names import Lane
from tfdear.rendezvous import certificates

_Result = TypeVar("_Result")

# Who a connection is: magic, the job, the rank that connects, the group, its number in the group.
_HELLO = struct.Struct("<8s16sIHH")
_MAGIC = b"tfdear 1"
_WELCOME = b"welcome!"
_JOB_BYTES = 16
_GROUPS = frozenset(int(lane) for lane in Lane)
# One stranger holds a place for so long at the most, and all together hold so many.
_HANDSHAKE_SECONDS = 5.0
_MOST_HANDSHAKES = 64
_BACKLOG = 1024
_LOG_SECONDS = 60.0  # Between two lines about one address.
_RETRY_SECONDS = 0.2


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
        exchange: Gives every rank the texts of all ranks; all ranks call it together.
        timeout: Seconds within which a peer must be there.
    """

    def __init__(
        self,
        rank: int,
        address: str,
        certificate: certificates.Certificate | None,
        exchange: Callable[[str], list[str]],
        timeout: float,
    ):
        self._rank = rank
        self._timeout = timeout
        self._server: ssl.SSLContext | None = None
        self._client: ssl.SSLContext | None = None
        if certificate is not None:
            self._server, self._client = _contexts(certificate)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
        self._lock = threading.Condition()
        # The connections that were welcomed, and those of them that nobody has asked for.
        self._admitted: set[_Place] = set()
        self._arrived: dict[_Place, socket.socket] = {}
        self._handshakes: list[_Handshake] = []  # In the order of their arrival.
        self._logged: dict[str, float] = {}
        self._is_closed = False
        own = {"address": self._listener.getsockname()[:2], "job": secrets.token_hex(_JOB_BYTES)}
        published = [json.loads(text) for text in exchange(json.dumps(own))]
        self._addresses = [(str(one["address"][0]), int(one["address"][1])) for one in published]
        # Jobs of one user may have the same secret.
        self.job = bytes.fromhex(str(published[0]["job"]))
        threading.Thread(target=self._accept, name="tfdear-data-listener", daemon=True).start()

    def __enter__(self) -> DataConnections:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, group: int, ranks: Sequence[int], connections: int) -> list[list[int]]:
        """Sockets to all members of a group, in their order; all members call it together.

        Returns:
            For each member its descriptors, which belong to the caller; none for this rank.
        """
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
        """Closes the port, and what nobody has asked for."""
        with self._lock:
            self._is_closed = True
            rest = list(self._arrived.values())
            self._arrived.clear()
            for handshake in self._handshakes:
                _end(handshake.connection)
        # Wakes the thread that accepts, which a mere close does not.
        _end(self._listener)
        self._listener.close()
        for connection in rest:
            connection.close()

    # Connecting.

    def _dial(self, place: _Place, deadline: float) -> socket.socket:
        address = self._addresses[place.peer]
        while True:
            try:
                return self._greet(place, address, min(deadline, _soon()))
            except (OSError, _NotOfThisJobError) as error:
                # It may have had to make room, as under a flood of strangers.
                if time.monotonic() + _RETRY_SECONDS > deadline:
                    raise errors.TfdearError(
                        f"no connection to rank {place.peer} at {address[0]}:{address[1]} within "
                        f"{self._timeout:g} s: {error}. Did it end, or does a firewall stand "
                        "between?"
                    ) from None
            time.sleep(_RETRY_SECONDS)

    def _greet(self, place: _Place, address: tuple[str, int], deadline: float) -> socket.socket:
        connection = socket.create_connection(address, timeout=_left(deadline))
        try:
            if self._client is not None:
                name = certificates.name_of(place.peer)
                connection = _wrapped(connection, self._client, server_hostname=name)
                _shake_hands(connection, deadline)
            hello = _HELLO.pack(_MAGIC, self.job, self._rank, place.group, place.number)
            _send(connection, hello, deadline)
            if _receive(connection, len(_WELCOME), deadline) != _WELCOME:
                raise _NotOfThisJobError("it is not expected there")
            return _unguard(connection, deadline)
        except BaseException:
            connection.close()
            raise

    def _await(self, place: _Place, deadline: float) -> socket.socket:
        with self._lock:
            if not self._lock.wait_for(lambda: place in self._arrived, _left(deadline)):
                raise errors.TfdearError(
                    f"rank {place.peer} did not connect within {self._timeout:g} s to "
                    f"{self._listener.getsockname()[0]}:{self._listener.getsockname()[1]}. Did it "
                    "end, or does a firewall stand between?"
                )
            return self._arrived.pop(place)

    # Listening.

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError as error:
                with self._lock:
                    if self._is_closed:
                        return
                # Out of descriptors, most likely: those of strangers are freed soon.
                logging.warning("tfdear: rank %d cannot accept: %s", self._rank, error)
                time.sleep(_RETRY_SECONDS)
                continue
            with self._lock:
                if self._is_closed:
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
        _end(oldest.connection)

    def _welcome(self, handshake: _Handshake) -> None:
        deadline = _soon()
        try:
            if self._server is not None:
                handshake.connection = _wrapped(
                    handshake.connection, self._server, server_side=True
                )
                _shake_hands(handshake.connection, deadline)
            hello = _receive(handshake.connection, _HELLO.size, deadline)
            place = self._place_of(handshake.connection, hello)
            self._admit(handshake, place)
            try:
                _send(handshake.connection, _WELCOME, deadline)
                handshake.connection = _unguard(handshake.connection, deadline)
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
        if magic != _MAGIC or job != self.job:
            raise _NotOfThisJobError("it belongs to another job")
        if not self._rank < rank < len(self._addresses):
            raise _NotOfThisJobError(f"it says that it is rank {rank}")
        if group not in _GROUPS:
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


def _contexts(certificate: certificates.Certificate) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing may follow the handshake: the plain socket begins there.
    server.num_tickets = 0
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=certificate.authority.decode())
        # It is loaded from files only: these have no name.
        with _file_of(certificate.chain) as chain, _file_of(certificate.key) as key:
            context.load_cert_chain(chain, key)
    return server, client


@contextlib.contextmanager
def _file_of(data: bytes) -> Any:
    descriptor = os.memfd_create("tfdear", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _end(connection: socket.socket) -> None:
    """Ends what a thread does with a socket; that thread closes it."""
    with contextlib.suppress(OSError):
        # Not by the method of an SSLSocket, which also forgets its state while the thread uses it.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _wrapped(connection: socket.socket, context: ssl.SSLContext, **arguments: Any) -> ssl.SSLSocket:
    connection.setblocking(False)
    return context.wrap_socket(connection, do_handshake_on_connect=False, **arguments)


def _shake_hands(connection: ssl.SSLSocket, deadline: float) -> None:
    _until(connection, connection.do_handshake, deadline)


def _unguard(connection: socket.socket, deadline: float) -> socket.socket:
    """Ends TLS in good order, so that what follows is plain; both sides call it."""
    if isinstance(connection, ssl.SSLSocket):
        return _until(connection, connection.unwrap, deadline)
    return connection


def _send(connection: socket.socket, data: bytes, deadline: float) -> None:
    connection.setblocking(False)
    sent = 0
    while sent < len(data):
        sent += _until(connection, functools.partial(connection.send, data[sent:]), deadline)


def _receive(connection: socket.socket, num_bytes: int, deadline: float) -> bytes:
    connection.setblocking(False)
    data = b""
    while len(data) < num_bytes:
        receive = functools.partial(connection.recv, num_bytes - len(data))
        part = _until(connection, receive, deadline)
        if not part:
            raise ConnectionError("it closed the connection")
        data += part
    return data


def _until(connection: socket.socket, operation: Callable[[], _Result], deadline: float) -> _Result:
    """The operation's result: within the deadline, however slowly bytes come."""
    while True:
        try:
            return operation()
        except (ssl.SSLWantReadError, BlockingIOError):
            news = select.POLLIN
        except ssl.SSLWantWriteError:
            news = select.POLLOUT
        poll = select.poll()  # Unlike select(), for descriptors of any number.
        poll.register(connection, news)
        if not poll.poll(1000 * _left(deadline)):
            raise TimeoutError("it took too long")


def _soon() -> float:
    return time.monotonic() + _HANDSHAKE_SECONDS


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
