# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: network namespaces on a bridge. Needs root and iproute2."""

import contextlib
import os
import subprocess

_SUBNET = "10.213.7"


@contextlib.contextmanager
def hosts(count: int):
    """Makes `count` namespaces that reach each other and nothing else; removes them at the end.

    Yields:
        A list of (name of the namespace, its address). Its network device is `eth0`.
    """
    prefix = f"td{os.getpid() % 100000}"
    bridge = f"{prefix}br"
    names = [f"{prefix}n{index}" for index in range(count)]
    switch = f"{prefix}sw"
    try:
        # The bridge has a namespace of its own: nothing of it touches the machine's network.
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", bridge, "type", "bridge")
        _ip("-n", switch, "link", "set", bridge, "up")
        for index, name in enumerate(names):
            port = f"port{index}"
            _ip("netns", "add", name)
            _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", port, "master", bridge, "up")
            _ip("-n", name, "addr", "add", f"{_SUBNET}.{index + 1}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        yield [(name, f"{_SUBNET}.{index + 1}") for index, name in enumerate(names)]
    finally:
        for name in [*names, switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=10)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=10)
