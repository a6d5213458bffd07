# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank's port for connections that carry data: who may come in, and who has come."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator

from absl import logging

from tfdear import errors
from tfdear.base.names import Lane
from tfdear.rendezvous import certificates, guarded_sockets

# Who a connection is: magic, the job, the rank that connects, the one to which it does, the group,
# its number in the group.
HELLO = struct.Struct("<8s16sIIHH")
MAGIC = b"tfdear 1"
WELCOME = b"welcome!"
# Who waits to be welcome may have given up before it is.
CONFIRMATION = b"thanks!!"
# From the welcome on both ends know each other, and neither gives up because the other is busy.
PATIENCE_SECONDS = 60.0
# From here on numbers are for connections that belong to no group of the engine.
FIRST_FREE_GROUP = 256
# One stranger holds a place for so long at the most, and all together hold so many.
HANDSHAKE_SECONDS = 5.0
MOST_HANDSHAKES = 64
RETRY_SECONDS = 0.2
CLOSED = "the connections of this rank were closed meanwhile"
_GROUPS = frozenset(int(lane) for lane in Lane)
_BACKLOG = 1024
_LOG_SECONDS = 60.0  # Between two lines about one address.


class NotOfThisJobError(Exception):
    """What connected is no rank of this job, or none that is expected."""


@dataclasses.dataclass(frozen=True)
class Place:
    """One connection: its group, the peer, and its number among those of both."""

    group: int
    peer: int
    number: int


@dataclasses.dataclass(eq=False)
class _Handshake:
    """Somebody who has connected and is not known yet."""

    host: str
    connection: socket.socket


class DataListener:
    """The port, while somebody waits for peers; see [Note: when a rank listens].

    Args:
        rank: This rank.
        address: The address on which it listens.
        context: Of TLS; None: whoever comes is let in.
        world_size: Number of ranks.
        number: Of the job.
    """

    def __init__(
        self,
        rank: int,
        address: str,
        context: ssl.SSLContext | None,
        world_size: int,
        number: bytes,
    ):
        self.address = address
        self._rank = rank
        self._context = context
        self._world_size = world_size
        self._number = number
        self._lock = threading.Condition()
        # While anybody waits for peers, and how many do.
        self._listener: socket.socket | None = None
        self._waiting = 0
        # The connections that were welcomed, and those of them that nobody has asked for.
        self._admitted: set[Place] = set()
        self.arrived: dict[Place, socket.socket] = {}
        self._handshakes: list[_Handshake] = []  # In the order of their arrival.
        self._logged: dict[str, float] = {}
        self.is_closed = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[tuple[str, int] | None]:
        """Listens in the meantime; gives host and port, if others do not know them yet."""
        with self._lock:
            if self.is_closed:
                raise errors.TfdearError(CLOSED)
            opened = self._listen() if self._listener is None else None
            self._waiting += 1
        try:
            yield None if opened is None else opened.getsockname()[:2]
        finally:
            with self._lock:
                self._waiting -= 1
                if self._waiting == 0:
                    self._stop_listening()

    def take(self, place: Place, seconds: float) -> socket.socket | None:
        """A connection that has come; None: it has not within so many seconds."""
        with self._lock:
            self._lock.wait_for(lambda: place in self.arrived or self.is_closed, seconds)
            return self.arrived.pop(place, None)

    def close(self) -> None:
        """Closes the port, and what nobody has asked for; ends those who wait for peers."""
        with self._lock:
            self.is_closed = True
            rest = list(self.arrived.values())
            self.arrived.clear()
            self._stop_listening()
            self._lock.notify_all()
        for connection in rest:
            connection.close()

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        listener = socket.create_server((self.address, 0), family=family, backlog=_BACKLOG)
        accepting = threading.Thread(
            target=self._accept, args=(listener,), name="tfdear-data-listener", daemon=True
        )
        try:
            accepting.start()
        except RuntimeError:  # There are too many threads.
            listener.close()
            raise
        # Whoever finds it here waits for what that thread accepts.
        self._listener = listener
        return listener

    def _stop_listening(self) -> None:
        for handshake in self._handshakes:
            guarded_sockets.end(handshake.connection)
        if self._listener is not None:
            # Wakes the thread that accepts, which a mere close does not.
            guarded_sockets.end(self._listener)
            self._listener.close()
            self._listener = None

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
                time.sleep(RETRY_SECONDS)
                continue
            with self._lock:
                if self._listener is not listener:
                    connection.close()
                    return
                self._make_room()
                handshake = _Handshake(str(address[0]), connection)
                self._handshakes.append(handshake)
            welcoming = threading.Thread(
                target=self._welcome, args=(handshake,), name="tfdear-handshake", daemon=True
            )
            try:
                welcoming.start()
            except RuntimeError as error:  # There are too many threads. A rank tries again.
                with self._lock, contextlib.suppress(ValueError):
                    self._handshakes.remove(handshake)
                connection.close()
                logging.warning("tfdear: rank %d cannot welcome a peer: %s", self._rank, error)
                time.sleep(RETRY_SECONDS)

    def _make_room(self) -> None:
        """Ends the oldest handshake of the address that has most: ranks need milliseconds."""
        if len(self._handshakes) < MOST_HANDSHAKES:
            return
        hosts = [one.host for one in self._handshakes]
        greediest = max(set(hosts), key=hosts.count)
        oldest = next(one for one in self._handshakes if one.host == greediest)
        self._handshakes.remove(oldest)
        guarded_sockets.end(oldest.connection)

    def _welcome(self, handshake: _Handshake) -> None:
        deadline = time.monotonic() + HANDSHAKE_SECONDS
        try:
            if self._context is not None:
                handshake.connection = guarded_sockets.wrap(
                    handshake.connection, self._context, server_side=True
                )
                guarded_sockets.shake_hands(handshake.connection, deadline)
            hello = guarded_sockets.receive(handshake.connection, HELLO.size, deadline)
            place = self._place_of(handshake.connection, hello)
            self._admit(handshake, place)
            try:
                guarded_sockets.send(handshake.connection, WELCOME, deadline)
                deadline = time.monotonic() + PATIENCE_SECONDS
                confirmation = guarded_sockets.receive(
                    handshake.connection, len(CONFIRMATION), deadline
                )
                if confirmation != CONFIRMATION:
                    raise NotOfThisJobError("it does not confirm that it is welcome")
                handshake.connection = guarded_sockets.unguard(handshake.connection, deadline)
            except BaseException:
                with self._lock:
                    self._admitted.discard(place)
                raise
            with self._lock:
                if self.is_closed:
                    raise NotOfThisJobError("it came too late")
                self.arrived[place] = handshake.connection
                self._lock.notify_all()
        except (OSError, ValueError, NotOfThisJobError) as error:
            handshake.connection.close()
            self._note(handshake.host, error)
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._handshakes.remove(handshake)

    def _admit(self, handshake: _Handshake, place: Place) -> None:
        """Before it is welcomed, as the peer then has its connection: no stranger may end it."""
        with self._lock:
            if handshake not in self._handshakes:
                raise NotOfThisJobError("it had to make room")
            if place in self._admitted:
                raise NotOfThisJobError("it is there already")
            self._handshakes.remove(handshake)
            self._admitted.add(place)

    def _place_of(self, connection: socket.socket, hello: bytes) -> Place:
        magic, job, rank, target, group, number = HELLO.unpack(hello)
        if magic != MAGIC or job != self._number:
            raise NotOfThisJobError("it belongs to another job")
        if not self._rank < rank < self._world_size:
            raise NotOfThisJobError(f"it says that it is rank {rank}")
        if target != self._rank:
            raise NotOfThisJobError(f"it looks for rank {target}, which was here before")
        if group not in _GROUPS and group < FIRST_FREE_GROUP:
            raise NotOfThisJobError(f"it is for group {group}, which there is not")
        if isinstance(connection, ssl.SSLSocket):
            names = dict(connection.getpeercert() or {}).get("subjectAltName", ())
            if ("DNS", certificates.name_of(rank)) not in names:
                raise NotOfThisJobError(f"it is not rank {rank}, as it says")
        return Place(group, rank, number)

    def _note(self, host: str, error: Exception) -> None:
        now = time.monotonic()
        with self._lock:
            if self.is_closed or now - self._logged.get(host, -_LOG_SECONDS) < _LOG_SECONDS:
                return
            self._logged[host] = now
        logging.info(
            "tfdear: rank %d turned away a connection from %s: %s", self._rank, host, error
        )
