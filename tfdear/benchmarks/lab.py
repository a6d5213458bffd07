# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A network of several nodes on one machine: network namespaces on a bridge, with shaped links.

The kernel holds the only state: a lab is found by the names of its namespaces, and nothing outside
them is changed except `/etc/netns`, from where `ip netns exec` takes a node's hosts file. Needs
root, iproute2 and util-linux. Imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence

_PREFIX = "tfdear"
_SWITCH = "switch"
_SUBNET = "10.213.7"
_DEVICE = "eth0"
_LARGEST_LAB = 250
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,30}")
_RATE = re.compile(r"[0-9]+(\.[0-9]+)?[kmgt]?bit")
_HOSTS_FILES = pathlib.Path("/etc/netns")
# A token bucket must hold more than one 64 KiB segment that the kernel cuts late, or the link stays
# below its rate; with 256 KiB the payload reaches 1448 / 1514 of it.
_BURST = 256 << 10
# After a pause, a full token bucket passes at once: on a slow link a large part of a message. So
# there it holds at most this many seconds of the rate, and the kernel makes smaller segments.
_BURST_SECONDS = 2.1e-3
_LEAST_BURST = 32 << 10
_QUEUE_MS = 20
_BUNDLES = (1, 2, 4, 8, 16)
_CONGESTION_CONTROL = "cubic"
# Messages of IPv6 neighbour discovery would disturb the byte counters.
_NO_IPV6 = ("addrgenmode", "none")
_COMMAND_SECONDS = 30
# Seconds that processes in a lab have to end after SIGTERM.
_GRACE_SECONDS = 5.0


class LabError(RuntimeError):
    """A lab cannot be made, found or removed; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Node:
    """One node of a lab: a network namespace, as `ip netns` knows it."""

    namespace: str
    address: str
    hostname: str  # What programs on it see and the other nodes resolve.
    device: str = _DEVICE

    def command(self, command: Sequence[str]) -> list[str]:
        """Returns the command line that runs `command` on this node, with its host name."""
        # `ip` makes a mount namespace, so `unshare` need not. Each program replaces the one before,
        # so that the process that is started is the command itself.
        rename = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
        prefix = ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", rename]
        return [*prefix, self.hostname, *command]

    def bytes_sent(self) -> int:
        """Returns the bytes that the node has sent so far, headers included."""
        return self._counter("tx")

    def bytes_received(self) -> int:
        """Returns the bytes that the node has received so far, headers included."""
        return self._counter("rx")

    def _counter(self, direction: str) -> int:
        text = _ip("-n", self.namespace, "-j", "-s", "link", "show", "dev", self.device)
        return json.loads(text)[0]["stats64"][direction]["bytes"]


@dataclasses.dataclass(frozen=True)
class Lab:
    """A network of nodes that reach each other and nothing else."""

    name: str
    nodes: tuple[Node, ...]
    rate: str | None  # What each node may send; None: as fast as the machine can.
    paths: int = 1  # Equal parts of the rate, of which one connection gets one.

    @property
    def bits_per_second(self) -> float | None:
        """The rate as a number, None when the links are not shaped."""
        return None if self.rate is None else parse_rate(self.rate)

    @property
    def is_one_node(self) -> bool:
        """Whether all its ranks are on the same node."""
        return len({*self.nodes}) == 1

    def with_ranks(self, ranks_per_node: int) -> Lab:
        """Returns this lab with each node named once for each rank that it has."""
        nodes = tuple(node for node in self.nodes for _ in range(ranks_per_node))
        return dataclasses.replace(self, nodes=nodes)

    def bytes_sent(self) -> list[int]:
        """Returns the bytes that every node has sent so far, headers included."""
        return [node.bytes_sent() for node in self.nodes]

    def most_sent_since(self, before: Sequence[int]) -> int:
        """Returns the bytes that the busiest node has sent since `bytes_sent` gave `before`."""
        return max(b - a for a, b in zip(before, self.bytes_sent(), strict=True))


def parse_rate(rate: str) -> float:
    """Returns a rate such as "2.5gbit" in bits per second."""
    text = rate.lower()
    if not _RATE.fullmatch(text):
        raise LabError(f"a rate is written like 1gbit or 100mbit. Received: {rate!r}")
    number = text.removesuffix("bit")
    factors = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
    factor = factors.get(number[-1], 1.0)
    return float(number.rstrip("kmgt")) * factor


def up(nodes: int, rate: str | None = "1gbit", name: str = "lab", paths: int = 1) -> Lab:
    """Makes a lab.

    Every node sends at most `rate` (a token bucket, so that the payload of full TCP segments
    reaches 0.956 of it) and uses the congestion control "cubic": "bbr", a common default, measures
    the link all the time and adds noise. 2, 4, 8 or 16 `paths` make each node's link a bundle of
    that many links with equal shares of its rate. The ports of a connection select one of them, so
    that a connection gets one share of the rate, and several may share it.
    """
    _check_machine()
    _check_name(name)
    if not 1 <= nodes <= _LARGEST_LAB:
        raise LabError(f"a lab has 1 to {_LARGEST_LAB} nodes. Received: {nodes!r}")
    if rate is not None:
        parse_rate(rate)
    if paths not in _BUNDLES or (paths > 1 and rate is None):
        raise LabError(
            f"a link with a rate can be a bundle of {_BUNDLES} paths. Received: paths={paths!r}, "
            f"rate={rate!r}"
        )
    switch = f"{_PREFIX}-{name}-{_SWITCH}"
    try:
        # The kernel refuses a name that exists: of two processes that make the same lab, one fails.
        _ip("netns", "add", switch)
    except LabError as error:
        if switch not in _namespaces():
            raise
        raise LabError(
            f"there is a lab {name!r} already. Take it down (tfdear netlab down --name {name}) or "
            "choose another --name."
        ) from error
    try:
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", *_NO_IPV6, "up")
        made = [_make_node(name, switch, number, rate, paths) for number in range(nodes)]
        hosts = "".join(f"{node.address} {node.hostname}\n" for node in made)
        for node in made:
            folder = _HOSTS_FILES / node.namespace
            # Who removes the last other network removes the folder of all, perhaps just now.
            while not folder.exists():
                with contextlib.suppress(FileNotFoundError):
                    folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
    except BaseException:
        _remove(name)
        raise
    return Lab(name, tuple(made), rate, paths)


def _node(lab: str, number: int) -> Node:
    return Node(f"{_PREFIX}-{lab}-{number}", f"{_SUBNET}.{number + 1}", f"{lab}-node{number}")


def _make_node(lab: str, switch: str, number: int, rate: str | None, paths: int) -> Node:
    node = _node(lab, number)
    name, port = node.namespace, f"port{number}"
    _ip("netns", "add", name)
    _ip("-n", switch, "link", "add", port, "type", "veth", "peer", _DEVICE, "netns", name)
    _ip("-n", switch, "link", "set", port, "master", "bridge", *_NO_IPV6, "up")
    _ip("-n", name, "addr", "add", f"{node.address}/24", "dev", _DEVICE, "noprefixroute")
    _ip("-n", name, "link", "set", _DEVICE, *_NO_IPV6, "up")
    _ip("-n", name, "link", "set", "lo", "up")
    # By the route: as a namespace's default, only what the whole machine allows to all is possible.
    route = ["dev", _DEVICE, "src", node.address, "congctl", _CONGESTION_CONTROL]
    _ip("-n", name, "route", "add", f"{_SUBNET}.0/24", *route)
    if rate is not None:
        _shape(name, rate, paths)
    return node


def burst_bytes(bits_per_second: float) -> int:
    """Returns the number of bytes that a link of this rate passes at once after a pause."""
    return min(_BURST, max(_LEAST_BURST, int(bits_per_second / 8 * _BURST_SECONDS)))


def _shape(namespace: str, rate: str, paths: int) -> None:
    def add(what: str, *arguments: str) -> None:
        _call("tc", "-n", namespace, what, "add", "dev", _DEVICE, *arguments)

    if paths == 1:
        burst = burst_bytes(parse_rate(rate))
        if burst < _BURST:
            _ip("-n", namespace, "link", "set", "dev", _DEVICE, "gso_max_size", f"{burst // 2}")
        bucket = ["burst", f"{burst}", "latency", f"{_QUEUE_MS}ms"]
        add("qdisc", "root", "tbf", "rate", rate, *bucket)
        return
    # Packets that match no filter, such as ARP, are not shaped.
    add("qdisc", "root", "handle", "1:", "htb")
    share = parse_rate(rate) / paths
    queue_bytes = share / 8 * _QUEUE_MS / 1000
    for path in range(paths):
        group = f"1:{path + 1:x}"
        shape = ["htb", "rate", f"{share:.0f}bit", "burst", f"{_BURST}"]
        add("class", "parent", "1:", "classid", group, *shape)
        add("qdisc", "parent", group, "bfifo", "limit", f"{queue_bytes:.0f}")
    # By both ports, as bundles do: one of them is that of a listener, the same for many
    # connections. Without the lowest bit, which is not random: Linux connects from even ports and
    # gives odd ones to listeners that ask for any.
    mask = f"{(paths - 1) << 1:#x}"
    for source in range(paths):
        for target in range(paths):
            ports = ["match", "ip", "sport", f"{source << 1}", mask]
            ports += ["match", "ip", "dport", f"{target << 1}", mask]
            flow = f"1:{(source ^ target) + 1:x}"
            add("filter", "parent", "1:", "protocol", "ip", "u32", *ports, "flowid", flow)


def labs() -> list[str]:
    """Returns the names of the labs on this machine."""
    pattern = re.compile(rf"{_PREFIX}-(.+)-{_SWITCH}")
    found = (pattern.fullmatch(name) for name in _namespaces())
    return sorted(match[1] for match in found if match)


def find(name: str = "lab") -> Lab:
    """Returns a lab that was made before, possibly by another process."""
    _check_name(name)
    numbers = _node_numbers(name)
    if not numbers or f"{_PREFIX}-{name}-{_SWITCH}" not in _namespaces():
        there = ", ".join(labs()) or "none"
        raise LabError(
            f"there is no lab {name!r} (labs on this machine: {there}). Make it first: "
            f"tfdear netlab up --name {name}"
        )
    nodes = tuple(_node(name, number) for number in numbers)
    text = _call("tc", "-n", nodes[0].namespace, "-j", "qdisc", "show", "dev", _DEVICE)
    rates = [q["options"]["rate"] * 8 for q in json.loads(text) if q.get("kind") == "tbf"]
    # tc has no JSON for classes in every version: "class htb 1:1 root prio 0 rate 250Mbit ...".
    classes = _call("tc", "-n", nodes[0].namespace, "class", "show", "dev", _DEVICE)
    shares = [parse_rate(share) for share in re.findall(r"^class htb .* rate (\S+)", classes, re.M)]
    rate = sum(rates + shares)
    return Lab(name, nodes, f"{rate:.0f}bit" if rate else None, max(1, len(shares)))


def down(name: str = "lab") -> None:
    """Ends what runs on a lab's nodes and removes the lab."""
    _check_machine()
    _check_name(name)
    if name not in labs() and not _node_numbers(name):
        there = ", ".join(labs()) or "none"
        raise LabError(f"there is no lab {name!r} to take down (labs on this machine: {there}).")
    _remove(name)


@contextlib.contextmanager
def temporary(nodes: int, rate: str | None = "1gbit", paths: int = 1) -> Iterator[Lab]:
    """A lab of this process's own for a `with` statement, removed at its end."""
    name = f"pid{os.getpid()}"
    while name in labs():
        name += "x"
    lab = up(nodes, rate, name, paths)
    try:
        yield lab
    finally:
        _remove(name)


def _remove(name: str) -> None:
    namespaces = [f"{_PREFIX}-{name}-{number}" for number in _node_numbers(name)]
    # A namespace stays, without a name, while a process is in it, so they are ended first.
    _end_processes(namespaces)
    present = _namespaces()
    for namespace in [*namespaces, f"{_PREFIX}-{name}-{_SWITCH}"]:
        if namespace in present:
            _ip("netns", "del", namespace)
        shutil.rmtree(_HOSTS_FILES / namespace, ignore_errors=True)
    with contextlib.suppress(OSError):  # Not empty: others use it, too.
        _HOSTS_FILES.rmdir()


def _end_processes(namespaces: Sequence[str]) -> None:
    deadline = time.monotonic() + _GRACE_SECONDS
    asked: set[int] = set()
    while processes := [pid for name in namespaces for pid in _processes(name)]:
        late = time.monotonic() > deadline
        for pid in processes:
            if late or pid not in asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        asked.update(processes)
        if time.monotonic() > deadline + _GRACE_SECONDS:
            raise LabError(f"processes {processes} in the lab do not end, not even by SIGKILL.")
        time.sleep(0.05)


def _processes(namespace: str) -> list[int]:
    try:
        return [int(pid) for pid in _ip("netns", "pids", namespace).split()]
    except LabError:
        return []  # The namespace was not complete.


def _node_numbers(name: str) -> list[int]:
    pattern = re.compile(rf"{_PREFIX}-{re.escape(name)}-([0-9]+)")
    found = (pattern.fullmatch(namespace) for namespace in _namespaces())
    return sorted(int(match[1]) for match in found if match)


def _namespaces() -> set[str]:
    return {line.split()[0] for line in _ip("netns", "list").splitlines() if line}


def _check_name(name: str) -> None:
    # With a number at the end, the nodes of one lab would have names like those of another.
    if not _NAME.fullmatch(name) or re.search(r"(^|-)[0-9]+$", name):
        raise LabError(
            "the name of a lab has small letters, digits and dashes, and does not end in a number "
            f"after a dash. Received: {name!r}"
        )


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise LabError(
            "making network namespaces needs root: run it with sudo, or in a container that has "
            "the capabilities NET_ADMIN and SYS_ADMIN."
        )
    packages = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}
    missing = sorted(tool for tool in packages if shutil.which(tool) is None)
    if missing:
        raise LabError(
            f"the programs {', '.join(missing)} are not on the path: install "
            f"{' and '.join(sorted({packages[tool] for tool in missing}))}."
        )


def _ip(*arguments: str) -> str:
    return _call("ip", *arguments)


def _call(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
    except FileNotFoundError:
        raise LabError(f"the program {command[0]} is not on the path: install iproute2.") from None
    except subprocess.TimeoutExpired:
        raise LabError(
            f"{' '.join(command)} did not end within {_COMMAND_SECONDS} seconds."
        ) from None
    if done.returncode:
        raise LabError(
            f"{' '.join(command)} failed with exit code {done.returncode}: {done.stderr.strip()}"
        )
    return done.stdout
