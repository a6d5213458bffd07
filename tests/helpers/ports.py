# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ports for jobs that start a while after their port was chosen."""

from __future__ import annotations

import itertools
import os
import random
import socket

# Below those that Linux gives to whoever asks for any: until a job listens on its port seconds
# later, no connection and no listener of another test can be given it.
_FIRST, _LAST = 16384, 32767
_MOST_WORKERS = 16  # Of pytest-xdist: each has ports of its own.
_PORTS_OF_A_WORKER = (_LAST - _FIRST + 1) // _MOST_WORKERS
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _MOST_WORKERS
# Other test runs on this machine begin elsewhere.
_numbers = itertools.count(random.SystemRandom().randrange(_PORTS_OF_A_WORKER))


def free_port() -> int:
    """A port on which nobody listens now, and that is given to no other test for long."""
    for _ in range(_PORTS_OF_A_WORKER):
        port = _FIRST + next(_numbers) % _PORTS_OF_A_WORKER * _MOST_WORKERS + _WORKER
        with socket.socket() as probe:
            # As of a server: connections of one before that are not quite over do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                # On all interfaces: a port that is free on loopback alone may not be enough.
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise OSError(f"no port of {_FIRST} to {_LAST} is free")
