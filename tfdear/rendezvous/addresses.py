# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Addresses under which ranks reach each other."""

import socket

from tfdear.rendezvous.cluster import Cluster, is_loopback, split_address


def meets_on_loopback(cluster: Cluster) -> bool:
    """Whether the ranks meet on the loopback interface, so that all are on this machine."""
    return is_loopback(split_address(cluster.coordinator, "address")[0])


def address_towards(host: str) -> str | None:
    """This machine's address on the way to `host`; None when there is no way."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # Sends nothing: it only chooses the interface.
            return probe.getsockname()[0]
    except OSError:
        return None
