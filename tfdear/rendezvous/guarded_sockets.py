# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Sockets between ranks while they prove by mutual TLS who they are; every wait has a deadline."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tfdear.rendezvous import certificates

_Result = TypeVar("_Result")


def contexts(certificate: certificates.Certificate) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For whoever is connected to, and for whoever connects: only ranks of the job are let in."""
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


def end(connection: socket.socket) -> None:
    """Ends what a thread does with a socket; that thread closes it."""
    with contextlib.suppress(OSError):
        # Not by the method of an SSLSocket, which also forgets its state while the thread uses it.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def wrap(connection: socket.socket, context: ssl.SSLContext, **arguments: Any) -> ssl.SSLSocket:
    """The socket under TLS, for which no hands were shaken yet."""
    connection.setblocking(False)
    return context.wrap_socket(connection, do_handshake_on_connect=False, **arguments)


def shake_hands(connection: ssl.SSLSocket, deadline: float) -> None:
    """Proves to the other end who this one is, and lets it do so."""
    _until(connection, connection.do_handshake, deadline)


def unguard(connection: socket.socket, deadline: float) -> socket.socket:
    """Ends TLS in good order, so that what follows is plain; both sides call it."""
    if isinstance(connection, ssl.SSLSocket):
        return _until(connection, connection.unwrap, deadline)
    return connection


def send(connection: socket.socket, data: bytes, deadline: float) -> None:
    """Sends all of it."""
    connection.setblocking(False)
    sent = 0
    while sent < len(data):
        sent += _until(connection, functools.partial(connection.send, data[sent:]), deadline)


def receive(connection: socket.socket, num_bytes: int, deadline: float) -> bytes:
    """Receives so many bytes, and no more."""
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
        if not poll.poll(1000 * seconds_left(deadline)):
            raise TimeoutError("it took too long")


def seconds_left(deadline: float) -> float:
    """Until a time of the monotonic clock; 0 when it is over."""
    return max(0.0, deadline - time.monotonic())
