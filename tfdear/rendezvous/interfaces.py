# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The network interface that data are to use, where the route to rank 0 is not the right one."""

import fcntl
import ipaddress
import os
import pathlib
import socket
import struct
from collections.abc import Mapping

VARIABLE = "TFDEAR_INTERFACE"

_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_ADDRESSES_OF_IPV6 = pathlib.Path("/proc/net/if_inet6")
_GLOBAL_SCOPE = "00"
_LOOPBACK_SCOPE = "10"


def chosen_address(environ: Mapping[str, str] = os.environ) -> str | None:
    """The address of the interface that TFDEAR_INTERFACE names; None: it names none.

    Raises:
        ValueError: There is no such interface, or it has no address.
    """
    name = environ.get(VARIABLE, "")
    if not name:
        return None
    known = [own for _, own in socket.if_nameindex()]
    if name not in known:
        raise ValueError(
            f"{VARIABLE}={name!r}: {socket.gethostname()} has no such network interface; it has "
            f"{', '.join(known)}"
        )
    address = _of_ipv4(name) or _of_ipv6(name)
    if address is None:
        raise ValueError(
            f"{VARIABLE}={name!r}: that network interface of {socket.gethostname()} has no address "
            "under which others could reach it"
        )
    return address


def _of_ipv4(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _GET_ADDRESS, struct.pack("256s", name.encode()))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _of_ipv6(name: str) -> str | None:
    try:
        lines = _ADDRESSES_OF_IPV6.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        digits, _, _, scope, _, interface = line.split()
        if interface == name and scope in (_GLOBAL_SCOPE, _LOOPBACK_SCOPE):
            return str(ipaddress.IPv6Address(int(digits, 16)))
    return None
