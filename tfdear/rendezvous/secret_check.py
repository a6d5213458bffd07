# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Finds out why rank 0 and this rank do not get together: gRPC says it in no fixed words."""

from __future__ import annotations

import socket
import ssl

from tfdear.rendezvous import certificates
from tfdear.rendezvous.cluster import split_address

_SECONDS = 2.0


def difference(address: str, certificate: certificates.Certificate | None) -> str | None:
    """What keeps this rank from the service at "host:port", other than that nobody is there.

    Args:
        address: Where rank 0 should be.
        certificate: This rank's; None: it goes without encryption.

    Returns:
        What is different there; None when nothing is known to be.
    """
    host, port = split_address(address, "coordinator")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if certificate is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=certificate.authority.decode())
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as connection:
            with context.wrap_socket(connection, server_hostname=certificates.name_of(0)):
                pass
    except ssl.SSLCertVerificationError:
        return "another secret"
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER" and certificate is not None:
            return "no secret (TFDEAR_INSECURE=1), or no tfdear"
        return None
    except OSError:
        return None
    return "a secret" if certificate is None else None
