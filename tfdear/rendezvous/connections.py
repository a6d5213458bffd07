# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""gRPC between ranks that know each other by the job's secret, over mutual TLS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from tfdear.rendezvous import certificates

Options = Sequence[tuple[str, int]]

_HANDSHAKE_MILLISECONDS = 10_000
# Connections beyond those of the ranks: a rank that starts again, and strangers.
_SPARE_CONNECTIONS = 64


def limits(world_size: int) -> Options:
    """Options of a server for the ranks of a job, of whose places strangers take few, not for long.

    gRPC itself would let them take all descriptors of the process, for two minutes.
    """
    return [
        # A second server on its port is an error, not half of the connections.
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MILLISECONDS),
        ("grpc.max_allowed_incoming_connections", 2 * world_size + _SPARE_CONNECTIONS),
    ]


def listen(server: Any, address: str, certificate: certificates.Certificate | None) -> int:
    """Lets a server listen at "host:port", for ranks of the job alone; returns the port.

    Without a certificate it listens for whoever comes (TFDEAR_INSECURE=1). Raises a RuntimeError
    when the address cannot be had.
    """
    if certificate is None:
        return server.add_insecure_port(address)
    credentials = grpc.ssl_server_credentials(
        [(certificate.key, certificate.chain)],
        root_certificates=certificate.authority,
        require_client_auth=True,
    )
    return server.add_secure_port(address, credentials)


def channel(
    address: str, rank: int, certificate: certificates.Certificate | None, options: Options
) -> grpc.Channel:
    """A channel to the server of a rank, which has to be that rank."""
    # A web proxy must not stand between the ranks of a job.
    every = [*options, ("grpc.enable_http_proxy", 0)]
    if certificate is None:
        return grpc.insecure_channel(address, options=every)
    credentials = grpc.ssl_channel_credentials(
        certificate.authority, certificate.key, certificate.chain
    )
    name = ("grpc.ssl_target_name_override", certificates.name_of(rank))
    return grpc.secure_channel(address, credentials, options=[*every, name])
