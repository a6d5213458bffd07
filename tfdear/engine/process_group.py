# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A process group of the engine, until the engine starts: how its members are connected."""

import ctypes
import functools
from collections.abc import Callable, Sequence

from tfdear import errors
from tfdear.base import names
from tfdear.base.names import Lane
from tfdear.engine import gloo_library
from tfdear.engine.c_api import CONNECTOR, call, load

_LARGEST_ADDRESS_BLOB = 1 << 22

# Gives sockets to ranks of a lane's group, those with these numbers to each; raises a PeerError
# where it cannot.
Connect = Callable[[Lane, Sequence[int], range], list[list[int]]]

# By lane: gives the sockets with these numbers to members, by their places in the group.
_connectors: dict[int, Callable[..., list[int]]] = {}


# By lane: what ended a call of this module's from within, such as the user's interrupt.
_interrupts: dict[int, BaseException] = {}


@CONNECTOR
def _connector(
    lane: int,
    members,
    count: int,
    first: int,
    last: int,
    sockets,
    failed_member,
    message,
    size: int,
) -> int:
    """What the engine calls. It lives as long as the process, and lets no exception pass."""
    try:
        descriptors = _connectors[lane](members[:count], range(first, last), failed_member)
        for i, descriptor in enumerate(descriptors):
            sockets[i] = descriptor
        return 0
    except BaseException as error:
        if not isinstance(error, Exception):
            _interrupts[lane] = error
        text = (str(error) or type(error).__name__).encode(errors="replace")[: size - 1]
        ctypes.memmove(message, text + b"\0", len(text) + 1)
        kind = getattr(error, "kind", "") or "unavailable"
        return 1 + names.STATUS_CODES.index(kind)


class ProcessGroup:
    """The group of a lane, of which this rank is a member.

    It is opened over one transport, and may be opened again over another one until it is connected.

    Args:
        lane: The lane.
        ranks: Its members.
        rank: This rank.
        timeout: Seconds that any wait for a member may take.
        direct: Whether ranks may exchange shards with all others at once. Where several ranks share
            a node's network and reach other nodes through it, a ring moves fewer bytes there.
        connections: How many to each member.
    """

    def __init__(
        self,
        lane: Lane,
        ranks: Sequence[int],
        rank: int,
        *,
        timeout: float,
        direct: bool,
        connections: int,
    ):
        self.lane = lane
        self.ranks = list(ranks)
        self.name = lane.name.lower()
        self.connections = connections
        self._member = self.ranks.index(rank)
        self._timeout = timeout
        self._direct_ranks = -1 if direct else 0
        members = (ctypes.c_int * len(ranks))(*ranks)
        self._identity = (lane, self.name.encode(), members, len(ranks))

    def open_in_shared_memory(self) -> bytes:
        """Opens it in memory of the members' node; returns this rank's address, to publish."""
        call("group_create_in_shared_memory", *self._identity, self._member, self._timeout)
        return self._listen()

    def open_over_tcp(self, connect: Connect, key: bytes) -> None:
        """Opens it over TCP; connections are made by `connect`, or else when they are needed.

        Args:
            connect: Makes them. Any thread may call it, in the middle of a collective.
            key: What all ranks of the job have, and nobody else, and what encrypts them; empty:
                they stay in the clear.
        """
        _connectors[self.lane] = functools.partial(self._sockets_to, connect)
        call(
            "group_create_over_tcp",
            *(*self._identity, self._member, self._timeout, self._direct_ranks),
            *(_connector, self.connections, key, len(key)),
        )

    def _sockets_to(
        self, connect: Connect, members: Sequence[int], numbers: range, failed_member
    ) -> list[int]:
        ranks = [self.ranks[member] for member in members]
        try:
            return [fd for own in connect(self.lane, ranks, numbers) for fd in own]
        except errors.PeerError as error:
            if error.peer in ranks:
                failed_member[0] = self.ranks.index(error.peer)
            raise

    def open_over_gloo(self, bind_address: str) -> bytes:
        """Opens it over Gloo's connections; returns this rank's addresses, to publish.

        Args:
            bind_address: IP address or host name to listen on.
        """
        transport = gloo_library.create(
            self._member, len(self.ranks), bind_address, self._timeout, self.connections
        )
        call("group_create_over_transport", *self._identity, self._direct_ranks, transport)
        return self._listen()

    def probe(self, addresses: Sequence[bytes]) -> None:
        """Raises TfdearError unless this rank can reach the members with these addresses."""
        call("group_probe", self.lane, *_texts(addresses))

    def connect(self, addresses: Sequence[bytes]) -> None:
        """Connects it to the members with these addresses."""
        try:
            call("group_connect", self.lane, *_texts(addresses))
        except errors.TfdearError:
            if self.lane in _interrupts:
                raise _interrupts.pop(self.lane) from None
            raise

    def _listen(self) -> bytes:
        blob = ctypes.create_string_buffer(_LARGEST_ADDRESS_BLOB)
        length = load().tfdear_group_listen(self.lane, blob, _LARGEST_ADDRESS_BLOB)
        if length < 0:
            raise errors.TfdearError(f"the addresses of process group {self.name!r} are too long")
        return blob.raw[:length]


def _texts(addresses: Sequence[bytes]) -> tuple:
    lengths = (ctypes.c_int * len(addresses))(*map(len, addresses))
    return (ctypes.c_char_p * len(addresses))(*addresses), lengths, len(addresses)
