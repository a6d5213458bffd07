# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The service in rank 0 through which the ranks of a job meet: a store, and who is there.

Every rank holds one stream open for as long as it is part of the job. The end of a stream that was
not announced is the end of its rank, and what others must know comes through it at once: nobody
polls. gRPC answers signs of life without Python, so a rank whose script holds the interpreter for
long is not taken for dead.

[Note: one job after another]
A process may take part in a job, and then in another one at the same address. A rank may come to
the next job before rank 0 has ended this one: it is turned away, and tries again until the service
of the next job listens, as ranks do that start before rank 0. So is a process that is started again
in the place of one that was lost, while the others still come to their ends.

[Note: signs of life]
Both ends of a stream send a ping after half a heartbeat without a byte and wait half a heartbeat
for its answer. The kernel closes the connections of a process that was killed, so that its stream
ends at once; that of a stopped process, or one behind a broken line, ends with the heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc

from tfdear import errors
from tfdear.rendezvous import certificates, connections, store_protocol, store_records
from tfdear.rendezvous.cluster import split_address

_START_SECONDS = 30.0
_GRACE_SECONDS = 0.5  # For calls that are about to return.
_MOST_STREAMS = 64  # Of one connection.
_LONGEST_WAIT_SECONDS = 10.0  # For a value; whoever still wants it asks again.


class StoreService:
    """Serves the ranks of one job, in a thread of its own, from `start` to `stop`.

    Args:
        address: "host:port" under which the ranks ask for it.
        listen: The address on which it listens, without a port.
        world_size: Number of ranks.
        heartbeat: Seconds without a sign of life after which a rank is given up.
        certificate: Rank 0's; None: without encryption, for whoever comes.
    """

    def __init__(
        self,
        address: str,
        listen: str,
        world_size: int,
        heartbeat: float,
        certificate: certificates.Certificate | None,
    ):
        port = split_address(address, "coordinator")[1]
        self._listen = f"[{listen}]:{port}" if ":" in listen else f"{listen}:{port}"
        self._world_size = world_size
        self._heartbeat = heartbeat
        self._certificate = certificate
        self._entries: dict[str, str] = {}
        # Whoever waits for a value that is not there yet, by its key.
        self._awaited: dict[str, asyncio.Event] = {}
        # By rank: the events that it has yet to be told, and when it gave a sign last.
        self._present: dict[int, asyncio.Queue[dict[str, Any]]] = {}
        self._last_sign: dict[int, float] = {}
        self._thread = threading.Thread(target=self._run, name="tfdear-store", daemon=True)
        self._seen: set[int] = set()
        self._left: set[int] = set()  # Those that said so.
        self._listens = threading.Event()
        self._error: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None

    def start(self) -> None:
        """Begins to listen. Raises a RendezvousError when the address cannot be had."""
        self._thread.start()
        if not self._listens.wait(_START_SECONDS):
            raise errors.RendezvousError(
                f"rank 0's service did not start within {_START_SECONDS:g} s."
            )
        if self._error is not None:
            raise errors.RendezvousError(
                f"rank 0 cannot listen on {self._listen}, where the ranks meet: {self._why_not()}"
            )

    def stop(self) -> None:
        """Closes every connection; the ranks that are still there notice."""
        if self._loop is not None and self._end is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(_START_SECONDS)

    def present(self) -> set[int]:
        """The ranks that are there now."""
        return set(self._present)

    def has_seen_all(self) -> bool:
        """Whether each rank came, be it still there or not."""
        return len(self._seen) >= self._world_size

    def _why_not(self) -> str:
        """Why this address cannot be had: gRPC tells it on its own log alone."""
        host, port = split_address(self._listen, "address")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return (
                    f"{error.strerror}. Another job, or an earlier run of this one, may still hold "
                    f"it: `ss -ltnp 'sport = :{port}'` shows which. Stop it or choose another port."
                )
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                return f"{error.strerror}. Choose another address."
        return f"{type(self._error).__name__}: {self._error}"

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            if self._listens.is_set():
                raise
            self._error = error
            self._listens.set()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        # What is told to all ranks alike, such as their nodes, has many repetitions.
        server = grpc.aio.server(options=self._options(), compression=grpc.Compression.Gzip)
        server.add_generic_rpc_handlers((self._handlers(),))
        connections.listen(server, self._listen, self._certificate)
        await server.start()
        self._listens.set()
        await self._end.wait()
        # gRPC logs a traceback for every call that it has to cancel.
        await server.stop(grace=_GRACE_SECONDS)

    def _options(self) -> list[tuple[str, int]]:
        return [
            *store_protocol.options(self._heartbeat),
            *connections.limits(self._world_size),
            ("grpc.max_concurrent_streams", _MOST_STREAMS),
            # Pings without other traffic are what this service wants.
            ("grpc.http2.max_ping_strikes", 0),
        ]

    def _handlers(self) -> grpc.GenericRpcHandler:
        read, write = store_protocol.decode, store_protocol.encode
        unary = {"Insert": self._insert, "Get": self._get, "Directory": self._directory}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(method, read, write)
            for name, method in unary.items()
        }
        handlers["Join"] = grpc.stream_stream_rpc_method_handler(self._join, read, write)
        return grpc.method_handlers_generic_handler(store_protocol.SERVICE, handlers)

    async def _insert(self, request: Mapping[str, Any], context: Any) -> dict[str, Any]:
        key, value = str(request["key"]), str(request["value"])
        if key in self._entries and not request.get("overwrite"):
            return {"inserted": False}
        self._put(key, value)
        return {"inserted": True}

    async def _get(self, request: Mapping[str, Any], context: Any) -> dict[str, Any]:
        key, seconds = str(request["key"]), float(request.get("wait", 0))
        if self._entries.get(key) in (None, request.get("other_than")) and seconds > 0:
            arrival = self._awaited.setdefault(key, asyncio.Event())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(arrival.wait(), min(seconds, _LONGEST_WAIT_SECONDS))
        return {"value": self._entries.get(key)}

    async def _directory(self, request: Mapping[str, Any], context: Any) -> dict[str, Any]:
        start = str(request["prefix"]) + "/"
        found = {key: value for key, value in self._entries.items() if key.startswith(start)}
        return {"entries": found}

    async def _join(
        self, requests: AsyncIterator[Mapping[str, Any]], context: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """The life of one rank in the job. Its first message says who it is."""
        request = await anext(requests)
        rank, description = int(request["rank"]), str(request["description"])
        other = self._entries.get(f"start/rank/{rank}")
        same = other is not None and _same_process(other, description)
        is_over = store_protocol.ALL_ENDED in self._entries or f"lost/{rank}" in self._entries
        if is_over or (same and rank in self._left):
            # See [Note: one job after another].
            yield {"ended": True}
            return
        if rank in self._present or (other is not None and not same):
            yield {"other": other}
            return
        if not 0 <= rank < self._world_size and self._has_started():
            # Of another job. Before the start it is told to all, as they may be the ones in error.
            yield {"world_size": self._world_size}
            return
        events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for key, value in self._entries.items():
            if store_protocol.is_pushed(key, rank):
                events.put_nowait({"key": key, "value": value})
        self._present[rank] = events
        self._seen.add(rank)
        self._last_sign[rank] = time.monotonic()
        self._put(f"start/rank/{rank}", description)
        listener = asyncio.ensure_future(self._listen_to(rank, requests, events))
        leaves = False
        # From here on it is told to the others when this rank is gone, whenever that is.
        try:
            yield {"joined": True}
            while True:
                event = await events.get()
                if "leaves" in event:
                    leaves = True
                    return
                yield event
        finally:
            listener.cancel()
            del self._present[rank]
            if leaves:
                self._left.add(rank)
            else:
                self._lose(rank)

    def _has_started(self) -> bool:
        verdict = self._entries.get("start/verdict")
        return verdict is not None and bool(store_records.verdict(verdict)["go"])

    async def _listen_to(
        self,
        rank: int,
        requests: AsyncIterator[Mapping[str, Any]],
        events: asyncio.Queue[dict[str, Any]],
    ) -> None:
        async for request in requests:
            self._last_sign[rank] = time.monotonic()
            if request.get("leaves"):
                # The rank's own call may have come too late, while the script held the interpreter.
                left, report = f"monitor/left/{rank}", request.get("report")
                if report is not None and left not in self._entries:
                    self._put(left, str(report))
                events.put_nowait({"leaves": True})

    def _lose(self, rank: int) -> None:
        """Tells the others that a rank is gone; its last sign says which way."""
        silent = time.monotonic() - self._last_sign[rank]
        # Pings end a connection after half a heartbeat at the earliest. A sign may be late: where
        # a rank's interpreter was held before it was killed.
        was_silent = silent > max(
            2 * store_protocol.pulse_seconds(self._heartbeat, self._world_size),
            0.45 * self._heartbeat,
            1.0,
        )
        self._put(f"lost/{rank}", json.dumps({"silent": silent if was_silent else 0.0}))

    def _put(self, key: str, value: str) -> None:
        self._entries[key] = value
        if key in self._awaited:
            self._awaited.pop(key).set()
        for rank, events in self._present.items():
            if store_protocol.is_pushed(key, rank):
                events.put_nowait({"key": key, "value": value})


def _same_process(first: str, second: str) -> bool:
    one, other = json.loads(first), json.loads(second)
    return (one["host"], one["pid"]) == (other["host"], other["pid"])
