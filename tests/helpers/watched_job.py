# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A job under the monitor: real processes, store and connections; only the arithmetic is left out.

Every rank connects to every other by TCP. A "collective" sends one byte to every peer and waits for
one from each, so that a peer that dies, stops or leaves is seen exactly as the engine sees it.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
import zlib

import tensorflow as tf

from tfdear.monitor import exit_handlers, monitor
from tfdear.rendezvous import cluster, rendezvous

COMMON = {"tfdear": "1", "backend": "gloo", "device": "CPU"}


class AbortedError(RuntimeError):
    """What the collective of an aborted engine raises."""


class ByteEngine:
    """`monitor.WatchedEngine` over one TCP connection per peer."""

    def __init__(self, meeting: rendezvous.Rendezvous):
        self._rank = meeting.rank
        self._lock = threading.Lock()
        self._running: dict | None = None
        self._failure: dict | None = None
        self._aborted: str | None = None
        self._sequence = 0
        listener = socket.create_server(("127.0.0.1", 0))
        ports = meeting.exchange("ports", str(listener.getsockname()[1]), 60)
        self._peers: dict[int, socket.socket] = {}
        for rank in range(self._rank):
            self._peers[rank] = socket.create_connection(("127.0.0.1", int(ports[rank])), 60)
            self._peers[rank].sendall(bytes([self._rank]))
        while len(self._peers) < meeting.world_size - 1:
            connection, _ = listener.accept()
            self._peers[connection.recv(1)[0]] = connection

    def in_flight(self) -> list[dict]:
        with self._lock:
            if self._running is None:
                return []
            running = dict(self._running)
        running["seconds"] = time.monotonic() - running.pop("since")
        return [running]

    def waits(self) -> tuple[int, list[str]]:
        return 0, []

    def failure(self) -> dict | None:
        return self._failure

    def abort(self, kind: str, message: str) -> None:
        if self._aborted is None:
            self._aborted = f"{kind}: {message}"

    def collective(self, signature: str) -> None:
        self._sequence += 1
        with self._lock:
            self._running = {
                "group": "world",
                "sequence": self._sequence,
                "signature": signature,
                "since": time.monotonic(),
                "waiting_for": -1,
            }
        # As in the engine, bytes of another collective are not taken for those of this one.
        word = bytes([zlib.crc32(f"{signature} #{self._sequence}".encode()) % 256])
        # The kernel takes one byte at once; it is the peer's word that has to be waited for.
        for peer, connection in self._peers.items():
            self._guarded(peer, lambda c=connection: c.sendall(word))
        for peer, connection in self._peers.items():
            with self._lock:
                self._running["waiting_for"] = peer
            self._guarded(peer, lambda c=connection: self._receive(c, word))
        with self._lock:
            self._running = None

    def _receive(self, connection: socket.socket, word: bytes) -> None:
        received = None
        while received != word:
            ready = received is None and select.select([connection], [], [], 0.05)[0]
            if self._aborted is not None:
                raise AbortedError(self._aborted)
            if ready:
                received = connection.recv(1)
                if not received:
                    raise ConnectionError("closed")
            elif received is not None:
                time.sleep(0.05)

    def _guarded(self, peer: int, call) -> None:
        try:
            call()
        except OSError:
            # As the real engine does: hold the error back until the monitor knows the cause.
            self._failure = self._failure or {
                "message": f"lost peer {peer}",
                "peer": peer,
                "kind": "unavailable",
            }
            end = time.monotonic() + 20
            while self._aborted is None and time.monotonic() < end:
                time.sleep(0.02)
            raise AbortedError(self._aborted or self._failure["message"]) from None


class SlowState(tf.train.experimental.PythonState):
    """Takes its time to be written."""

    def serialize(self) -> str:
        time.sleep(8)
        return "state"

    def deserialize(self, string_value: str) -> None:
        pass


def start(**monitor_options):
    """Meets the other ranks; returns the rendezvous, the engine and the running monitor."""
    meeting = rendezvous.connect(cluster.discover(), timeout=60, common=COMMON)
    engine = ByteEngine(meeting)
    watch = monitor.Monitor(meeting, engine, **monitor_options)
    exit_handlers.install(watch, meeting.ending)
    watch.start()
    return meeting, engine, watch


def main() -> None:
    victim, fault = int(sys.argv[1]), sys.argv[2]
    meeting, engine, _ = start(
        timeout=float(os.environ.get("JOB_TIMEOUT", "300")),
        cleanup_timeout=float(os.environ.get("JOB_CLEANUP_TIMEOUT", "60")),
    )
    for step in range(1000):
        if step == 20:
            print("training", flush=True)
        if step == 30 and meeting.rank == victim:
            if fault == "exception":
                raise ValueError("the data set is empty")
            if fault == "exit":
                sys.exit(0)
            if fault == "busy":
                time.sleep(1000)
            if fault == "save":
                tf.train.Checkpoint(slow=SlowState()).write(os.environ["JOB_CHECKPOINT"])
                print("written", flush=True)
            if fault == "different":
                engine.collective("all_gather float32[10]")
        if fault == "done" and step == 40:
            print("done", flush=True)
            return
        engine.collective("all_reduce float32[10]")
        if victim in (-1, meeting.rank):
            time.sleep(0.02)  # The others wait for it in the collective.


if __name__ == "__main__":
    main()
