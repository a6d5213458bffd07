# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank's side of the store in which the ranks of a job meet; rank 0 serves it."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from tfdear import errors
from tfdear.rendezvous import certificates, connections, store_protocol

# One request to the store; callers retry until their own deadline.
CALL_SECONDS = 10.0
# First and longest pause between two attempts to connect. gRPC's defaults are one second, which is
# long where the first attempt comes too early because all ranks start together, and two minutes.
_RECONNECT_MILLISECONDS = (50, 1000)
_CLOSE_SECONDS = 1.0
# How gRPC, or the kernel in its words, says that the other end does not answer; a process that has
# ended is told of by a reset or the end of the connection.
_SILENT = ("timeout", "timed out", "unreachable", "No route to host")


class Store:
    """Talks to rank 0's service. Any thread may use it.

    Args:
        address: "host:port" of the service.
        heartbeat: Seconds without a sign of life after which rank 0 is given up.
        world_size: Number of ranks.
        certificate: This rank's; None: without encryption.
    """

    def __init__(
        self,
        address: str,
        heartbeat: float,
        world_size: int,
        certificate: certificates.Certificate | None = None,
    ):
        self.address = address
        self._heartbeat = heartbeat
        self._world_size = world_size
        first, longest = _RECONNECT_MILLISECONDS
        options = [
            *store_protocol.options(heartbeat),
            ("grpc.initial_reconnect_backoff_ms", first),
            ("grpc.min_reconnect_backoff_ms", longest),
            ("grpc.max_reconnect_backoff_ms", longest),
            # A strategy that is made again in this process has a connection of its own.
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channel = connections.channel(address, 0, certificate, options)
        self._changed = threading.Condition()
        # What the service has told of its own accord, by key.
        self._told: dict[str, str] = {}
        self._joined = False
        self._leaves = False
        self._stream: Any = None
        self._to_send: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._threads: list[threading.Thread] = []
        # Why the stream ended, if it did.
        self._broken: str | None = None

    def insert(self, key: str, value: str, *, timeout: float, overwrite: bool = False) -> bool:
        """Stores a value; False when the key exists and may not be overwritten."""
        request = {"key": key, "value": value, "overwrite": overwrite}
        return bool(self._call("Insert", request, timeout)["inserted"])

    def try_get(
        self, key: str, *, timeout: float, wait: float = 0.0, other_than: str | None = None
    ) -> str | None:
        """The value of a key, None when it is not there.

        It waits for `wait` seconds until there is one, and another one than `other_than`.
        """
        request = {"key": key, "wait": wait, "other_than": other_than}
        return self._call("Get", request, timeout + wait)["value"]

    def directory(self, prefix: str, *, timeout: float) -> dict[str, str]:
        """All keys below `prefix` + "/", without the prefix, and their values."""
        entries = self._call("Directory", {"prefix": prefix}, timeout)["entries"]
        return {key[len(prefix) + 1 :]: value for key, value in entries.items()}

    def join(self, rank: int, description: str, *, timeout: float) -> str | None:
        """Becomes a rank of the job, until `leave` or the end of this process.

        Returns:
            None; else how another process described itself that is this rank already.

        Raises:
            MismatchError: The job has started, and has no such rank.
            StoreUnavailableError: Rank 0's service does not answer.
        """
        stream = self._channel.stream_stream(
            f"/{store_protocol.SERVICE}/Join", store_protocol.encode, store_protocol.decode
        )
        to_send: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._to_send = to_send
        to_send.put({"rank": rank, "description": description})
        answers: queue.Queue[dict[str, Any] | str] = queue.Queue()
        self._stream = stream(iter(to_send.get, None))
        self._start(self._read, "tfdear-told", self._stream, to_send, answers)
        try:
            answer = answers.get(timeout=max(timeout, 0.001))
        except queue.Empty:
            self._stream.cancel()
            raise self._unavailable("Join", "no answer", refused=False) from None
        if isinstance(answer, str):
            raise self._unavailable_by(answer, "Join")
        if "other" in answer:
            return str(answer["other"])
        if "world_size" in answer:
            raise errors.MismatchError(
                f"the job at {self.address} has started with a world size of "
                f"{answer['world_size']}, and this process is rank {rank} of another one. Give it "
                "the address of its own job."
            )
        if "joined" not in answer:  # See [Note: one job after another].
            raise self._unavailable("Join", f"the job has ended for rank {rank}", refused=False)
        self._start(self._pulse, "tfdear-pulse")
        return None

    def _start(self, work: Callable[..., None], name: str, *arguments: Any) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(threading.Thread(target=work, args=arguments, name=name, daemon=True))
        self._threads[-1].start()

    @property
    def was_joined(self) -> bool:
        """Whether this process has become a rank of the job, and not left it itself."""
        return self._joined or self._broken is not None

    def told(self, prefix: str) -> dict[str, str]:
        """What the service has told below `prefix` + "/", without the prefix.

        Raises a StoreUnavailableError when rank 0 tells nothing any more.
        """
        self.check()
        return self.known(prefix)

    def known(self, prefix: str) -> dict[str, str]:
        """As `told`, also when rank 0 tells nothing any more."""
        start = prefix + "/"
        with self._changed:
            return {k[len(start) :]: v for k, v in self._told.items() if k.startswith(start)}

    def told_value(self, key: str) -> str | None:
        """What the service has told of a key; None: nothing yet."""
        with self._changed:
            if key in self._told:
                return self._told[key]
        self.check()
        return None

    def has_told(self, key: str) -> bool:
        """Whether the service has told of a key; it may have ended since."""
        with self._changed:
            return key in self._told

    def wait_for_news(self, timeout: float) -> None:
        """Waits until the service tells anything, or its time is over."""
        with self._changed:
            self._changed.wait(timeout)

    def wait_for(self, key: str, *, timeout: float) -> str | None:
        """A value that the service tells of; None when it does not within `timeout` seconds."""
        end = time.monotonic() + timeout
        with self._changed:
            while key not in self._told:
                if self._broken is not None:
                    break
                if not self._changed.wait(max(0.0, end - time.monotonic())):
                    return None
            else:
                return self._told[key]
        self.check()
        return None

    def forget(self, path: str) -> None:
        """Drops what was told of a key and of those below it; nobody will ask for it again."""
        with self._changed:
            for key in [k for k in self._told if k == path or k.startswith(path + "/")]:
                del self._told[key]

    def check(self) -> None:
        """Raises a StoreUnavailableError when rank 0 is not there any more."""
        with self._changed:
            broken = self._broken
        if broken is not None:
            # Not a matter of whether its port is closed by now: on a busy machine a process that
            # was killed ends its connections seconds before that.
            is_silent = any(words in broken for words in _SILENT)
            raise self._unavailable("Join", broken, refused=not is_silent)

    def leave(self, report: str | None = None) -> None:
        """Ends this rank's part in the job, so that nobody takes it for lost.

        The others are told of `report`, unless this rank has reported its end before. It waits up
        to a heartbeat: rank 0's script may hold the interpreter, and whoever closes the connection
        before rank 0 has heard that it leaves is lost.
        """
        self._leaves = True
        if self._joined and self._broken is None:
            self._to_send.put({"leaves": True, "report": report})
            self._to_send.put(None)
            with self._changed:
                self._changed.wait_for(lambda: not self._joined, self._heartbeat)
        self.close()

    def close(self) -> None:
        """Closes the connection, and ends the threads that serve it."""
        self._to_send.put(None)
        self._channel.close()
        end = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        # Its destructor takes a lock that a thread of gRPC's may hold. That one must still run: at
        # the end of the process it may have been ended with the lock held.
        self._stream = None

    def _read(self, stream: Any, to_send: queue.Queue, answers: queue.Queue) -> None:
        # Rank 0 ends a stream in good order only where this rank leaves.
        ended = "the stream has ended"
        try:
            answer: dict[str, Any] = next(stream, {})
            with self._changed:
                self._joined = "joined" in answer
            answers.put(answer)
            for event in stream:
                with self._changed:
                    self._told[event["key"]] = event["value"]
                    self._changed.notify_all()
        except Exception as broken:  # Whatever it was: nothing is heard any more.
            ended = _details_of(broken)
            # gRPC raises the stream itself, which would live on in the frames of its traceback.
            broken.__traceback__ = None
            stream.cancel()
        answers.put(ended)
        to_send.put(None)  # Else gRPC's thread would wait for more.
        with self._changed:
            if self._joined and not self._leaves:
                self._broken = ended
            self._joined = False
            self._changed.notify_all()

    def _pulse(self) -> None:
        seconds = store_protocol.pulse_seconds(self._heartbeat, self._world_size)
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: not self._joined, seconds):
                    return
            self._to_send.put({})

    def _call(self, method: str, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        call = self._channel.unary_unary(
            f"/{store_protocol.SERVICE}/{method}", store_protocol.encode, store_protocol.decode
        )
        try:
            return call(request, timeout=max(timeout, 0.001))
        except grpc.RpcError as error:
            raise self._unavailable_by(_details_of(error), method) from None
        except ValueError as error:  # The channel was closed by another thread.
            raise errors.StoreUnavailableError(f"{method}: {error}") from None

    def _unavailable_by(self, details: str, method: str) -> errors.StoreUnavailableError:
        return self._unavailable(method, details, "Connection refused" in details)

    def _unavailable(self, method: str, reason: str, refused: bool) -> errors.StoreUnavailableError:
        return errors.StoreUnavailableError(
            f"rank 0's service at {self.address} did not do {method}: {reason}", refused=refused
        )


def _details_of(error: Any) -> str:
    with contextlib.suppress(AttributeError):
        return f"{error.code().name}: {error.details()}"
    return f"{type(error).__name__}: {error}"
