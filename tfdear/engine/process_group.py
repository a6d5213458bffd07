# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A process group of the engine, until the engine starts: how its members are connected."""

import ctypes
from collections.abc import Sequence

from tfdear import errors
from tfdear.base.names import Lane
from tfdear.engine import gloo_library
from tfdear.engine.c_api import call, load

_LARGEST_ADDRESS_BLOB = 1 << 22


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

    def open_over_sockets(self, sockets: Sequence[Sequence[int]], key: bytes) -> None:
        """Opens it over TCP; `connect` encrypts the connections, if there is a key.

        Args:
            sockets: Descriptors of connections to each member, in their order, which belong to the
                engine from now on; none for this rank.
            key: What all ranks of the job have, and nobody else; empty: they stay in the clear.
        """
        flat = [fd for own in sockets for fd in (own or [-1] * self.connections)]
        call(
            "group_create_over_sockets",
            *(*self._identity, self._member, self._timeout, self._direct_ranks),
            (ctypes.c_int * len(flat))(*flat),
            *(self.connections, key, len(key)),
        )

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
        call("group_connect", self.lane, *_texts(addresses))

    def _listen(self) -> bytes:
        blob = ctypes.create_string_buffer(_LARGEST_ADDRESS_BLOB)
        length = load().tfdear_group_listen(self.lane, blob, _LARGEST_ADDRESS_BLOB)
        if length < 0:
            raise errors.TfdearError(f"the addresses of process group {self.name!r} are too long")
        return blob.raw[:length]


def _texts(addresses: Sequence[bytes]) -> tuple:
    lengths = (ctypes.c_int * len(addresses))(*map(len, addresses))
    return (ctypes.c_char_p * len(addresses))(*addresses), lengths, len(addresses)
