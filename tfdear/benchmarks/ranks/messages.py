# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Messages between the processes of baselines: five numbers and an array, over TCP. Needs NumPy."""

import socket
import struct
import time

import numpy as np

_HEADER = struct.Struct("<5q")
_SECONDS = 120.0


def listen(address, port):
    """A listener at an address of this node."""
    return socket.create_server((address, port), backlog=64)


def accept(listener):
    """The next connection."""
    listener.settimeout(_SECONDS)
    return _ready(listener.accept()[0])


def connect(address, port):
    """A connection to a listener that exists, or will soon."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            return _ready(socket.create_connection((address, port), _SECONDS))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _ready(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # What waits here waits for other ranks, whose turns may be minutes apart; the benchmark's own
    # time limits end it.
    connection.settimeout(None)
    return connection


def send(connection, *numbers, arrays=()):
    """Sends up to four numbers and arrays; the other side knows their types from the numbers."""
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
    padded = (*numbers, 0, 0, 0, 0)[:4]
    connection.sendall(_HEADER.pack(*padded, sum(map(len, parts))))
    for part in parts:
        connection.sendall(part)


def receive(connection, into=None):
    """Receives four numbers and bytes, as a new array or `into` one; EOFError at the end."""
    header = np.empty(_HEADER.size, np.uint8)
    _fill(connection, header)
    *numbers, size = _HEADER.unpack(header.tobytes())
    payload = np.empty(size, np.uint8) if into is None else into.view(np.uint8)[:size]
    _fill(connection, payload)
    return numbers, payload


def _fill(connection, array):
    view = memoryview(array)
    while view:
        received = connection.recv_into(view)
        if not received:
            raise EOFError("the process at the other end of a connection has ended")
        view = view[received:]
