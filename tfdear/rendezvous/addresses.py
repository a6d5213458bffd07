# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Addresses under which ranks reach each other."""

import contextlib
import socket
from typing import Any

from tfdear.rendezvous.cluster import Cluster, is_loopback, split_address


def meets_on_loopback(cluster: Cluster) -> bool:
    """Whether the ranks meet on the loopback interface, so that all are on this machine."""
    return is_loopback(split_address(cluster.coordinator, "address")[0])


def to_listen_on(coordinator: str) -> str:
    """The address on which rank 0 listens for the others, which reach it at "host:port".

    It is that host's where it is an address of this machine; a name may also stand for one of a
    machine in front of this one, and then every interface will do.
    """
    host, _ = split_address(coordinator, "coordinator")
    if is_loopback(host):
        return host
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        found = []
    # Debian maps a machine's own name to 127.0.1.1.
    own = {str(a[0]) for f, _, _, _, a in found if not is_loopback(str(a[0])) and _is_own(f, a)}
    # Under several, of two networks or protocols, ranks may know only one of them.
    if len(own) == 1:
        return own.pop()
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def _is_own(family: int, address: tuple[Any, ...]) -> bool:
    """Whether it is an address of this machine."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
        return True


def address_towards(host: str) -> str | None:
    """This machine's address on the way to `host`; None when there is no way.

    Of IPv4 where `host` has such an address, too: all ranks decide alike, by their own resolvers.
    """
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, _, _, _, address in sorted(found, key=lambda one: one[0] != socket.AF_INET):
        with (
            contextlib.suppress(OSError),
            socket.socket(family, socket.SOCK_DGRAM) as probe,
        ):
            probe.connect(address)  # Sends nothing: it only chooses the interface.
            return probe.getsockname()[0]
    return None
