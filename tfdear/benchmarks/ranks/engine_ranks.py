# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Many ranks on one node: the meeting, the transport and the engine of tfdear without TensorFlow.

Every rank is a process; this one forks them, so that each costs a few MiB.
"""

import gc
import json
import os
import pathlib
import selectors
import signal
import socket
import time
import traceback

import numpy as np

import tfdear
from tfdear.base import names
from tfdear.engine import c_api
from tfdear.engine.engine import Engine
from tfdear.job.groups import ProcessGroups
from tfdear.job.options import DearOptions
from tfdear.rendezvous import rendezvous
from tfdear.rendezvous.cluster import Cluster

_LIBRARY = pathlib.Path(tfdear.__file__).with_name("_tfdear_benchmarks.so")
_TIMEOUT, _HEARTBEAT = 120.0, 60.0
# Of struct tcp_info (linux/tcp.h): where the number of segments with data that were sent lies.
_DATA_SEGMENTS_SENT = slice(156, 160)
_state: dict = {}


def prepare(hostnames: list[str]) -> dict:
    """Rank 0: what all ranks must know before they start."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return {"port": probe.getsockname()[1]}


def start(rank: int, addresses: list[str], hostnames: list[str], prepared: dict) -> str:
    """Loads the engine; `rank` is 0 on the node of rank 0 and 1 on that of all others."""
    c_api.load_from(_LIBRARY, "Run `make install` in the source tree of tfdear.")
    _state.update(node=rank, coordinator=f"{addresses[0]}:{prepared['port']}")
    return f"tfdear {tfdear.__version__}"


def run(world_size: int, sums: int) -> list[dict]:
    """Starts the ranks of this node; returns what each of them measured, once all have ended."""
    # What all have in common stays so: a collector that looks at it would copy its pages.
    gc.freeze()
    ranks = [0] if _state["node"] == 0 else range(1, world_size)
    children = {}
    for rank in ranks:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _be_rank(rank, world_size, sums, writer)
        os.close(writer)
        children[reader] = pid
    try:
        return _answers(list(children))
    finally:
        for reader, pid in children.items():
            os.close(reader)
            os.kill(pid, signal.SIGKILL)  # Ended ones are not reaped yet.
            os.waitpid(pid, 0)


def _answers(readers: list[int]) -> list[dict]:
    texts = dict.fromkeys(readers, b"")
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                if data := os.read(key.fd, 1 << 16):
                    texts[key.fd] += data
                else:
                    selector.unregister(key.fd)
    answers = [json.loads(text or b'{"error": "it was killed"}') for text in texts.values()]
    failed = [answer["error"] for answer in answers if "error" in answer]
    if failed:
        raise RuntimeError(
            f"{len(failed)} of {len(answers)} ranks failed, the first with:\n{failed[0]}"
        )
    return answers


def _be_rank(rank: int, world_size: int, sums: int, writer: int) -> None:
    """In a process of its own, which ends."""
    try:
        answer = _measured(rank, world_size, sums)
    except BaseException:
        answer = {"error": traceback.format_exc()}
    os.write(writer, json.dumps(answer).encode())
    os._exit(0)


def _measured(rank: int, world_size: int, sums: int) -> dict:
    engine = Engine()
    # As if each rank were on a node of its own, so that nothing goes through shared memory.
    cluster = Cluster(
        rank, world_size, coordinator=_state["coordinator"], node_rank=rank, source="the benchmark"
    )
    meeting = rendezvous.connect(
        cluster, timeout=_TIMEOUT, heartbeat=_HEARTBEAT, common={"tfdear": tfdear.__version__}
    )
    met = time.monotonic()
    options = DearOptions(timeout=_TIMEOUT, init_timeout=_TIMEOUT, shared_memory=False)
    groups = ProcessGroups(options, rank, meeting.nodes)
    groups.connect(meeting, engine, cause_of=lambda error: error)
    engine.start(0, first_agreement=1, tables_first=False)
    data = np.ones(8, np.float32)
    engine.run_collective(names.Lane.CONTROL, names.Operation.ALL_REDUCE, data)
    ready = time.monotonic()
    assert (data == world_size).all(), data
    before = _messages_sent(meeting)
    seconds = engine.run_collective(
        names.Lane.CONTROL, names.Operation.ALL_REDUCE, np.zeros(8, np.float32), repeats=sums
    )
    sent = _messages_sent(meeting) - before
    # Nobody goes while others still sum.
    engine.run_collective(names.Lane.CONTROL, names.Operation.ALL_REDUCE, data)
    answer = {
        # By a clock that all processes of the machine share.
        "met": met,
        "ready": ready,
        "messages": sent / sums,
        "seconds": seconds / sums,
        "connections": len(_sockets(meeting)),
    }
    meeting.agree("end", "", lambda _: "", _TIMEOUT)
    engine.stop(_TIMEOUT)
    groups.close()
    meeting.ending.run()
    return answer


def _messages_sent(meeting: rendezvous.Rendezvous) -> int:
    """Segments that the kernel has sent to other ranks; a small message is one."""
    sent = 0
    for connection in _sockets(meeting):
        information = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        sent += int.from_bytes(information[_DATA_SEGMENTS_SENT], "little")
    return sent


def _sockets(meeting: rendezvous.Rendezvous) -> list[socket.socket]:
    """The connections of this process, but for those of the meeting."""
    port = int(_state["coordinator"].rpartition(":")[2])
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # No socket.
            continue
        with_peer = connection.family in (socket.AF_INET, socket.AF_INET6)
        try:
            ends = {connection.getsockname()[1], connection.getpeername()[1]} if with_peer else {0}
        except OSError:  # One that listens.
            ends = {0}
        if ends & {0, port}:
            connection.close()
        else:
            found.append(connection)
    return found
