# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Addresses under which ranks reach each other."""

import socket

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
    for family, _, _, _, address in found:
        # Debian maps a machine's own name to 127.0.1.1.
        if is_loopback(str(address[0])):
            continue
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return str(address[0])
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


def address_towards(host: str) -> str | None:
    """This machine's address on the way to `host`; None when there is no way."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # Sends nothing: it only chooses the interface.
            return probe.getsockname()[0]
    except OSError:
        return None
