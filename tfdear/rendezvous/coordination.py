# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Client of TensorFlow's coordination service: a key-value store and the health of the ranks.

TensorFlow's Python API offers only a part of the service: reads block, a value cannot be replaced,
keys cannot be listed, and no call has a deadline. The service itself is an ordinary gRPC service
that can do all of that, and gRPC for Python comes with TensorFlow. Calling it directly also works
before TensorFlow has connected, which is when the missing ranks have to be named.
"""

from __future__ import annotations

import os
import time
from typing import Any

# gRPC's fork handlers print a notice at every fork of a process that has an open channel; a child
# never uses the channel here, so they have nothing to do. gRPC reads this when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc  # noqa: E402
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: E402

from tfdear import errors  # noqa: E402

JOB = "worker"

_SERVICE = "/tensorflow.CoordinationService/"
_TASK_ERROR = 4  # CoordinatedTaskState.TASKSTATE_ERROR
_POLL_SECONDS = (0.005, 0.1)  # First and longest pause between two polls of the store.
# First and longest pause between two attempts to connect. gRPC's defaults are one second, which is
# long where the first attempt comes too early because all ranks start together, and two minutes.
_RECONNECT_MILLISECONDS = (50, 1000)

_Field = descriptor_pb2.FieldDescriptorProto
_TEXT, _BYTES, _BOOL = _Field.TYPE_STRING, _Field.TYPE_BYTES, _Field.TYPE_BOOL
_INT32, _MESSAGE = _Field.TYPE_INT32, _Field.TYPE_MESSAGE

# The part of coordination_service.proto that is used here: message -> (field, number, type,
# message type, repeated). Only the numbers are sent, not the names.
_MESSAGES: dict[str, tuple[tuple[str, int, int, str, bool], ...]] = {
    "KeyValue": (("key", 1, _TEXT, "", False), ("value", 2, _BYTES, "", False)),
    "InsertRequest": (
        ("kv", 1, _MESSAGE, "KeyValue", False),
        ("allow_overwrite", 2, _BOOL, "", False),
    ),
    "Empty": (),
    "TryGetRequest": (("key", 1, _TEXT, "", False),),
    "TryGetResponse": (("kv", 1, _MESSAGE, "KeyValue", False),),
    "DirectoryRequest": (("directory_key", 1, _TEXT, "", False),),
    "DirectoryResponse": (("kv", 2, _MESSAGE, "KeyValue", True),),
    "Task": (("job_name", 1, _TEXT, "", False), ("task_id", 2, _INT32, "", False)),
    "TaskStateRequest": (("source_task", 1, _MESSAGE, "Task", True),),
    "TaskState": (
        ("task", 1, _MESSAGE, "Task", False),
        ("state", 2, _INT32, "", False),
        ("error_code", 3, _INT32, "", False),
        ("error_message", 4, _TEXT, "", False),
    ),
    "TaskStateResponse": (("task_state", 1, _MESSAGE, "TaskState", True),),
}


def _message_classes() -> dict[str, Any]:
    package = "tfdear_coordination"
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, type_name, repeated in fields:
            message.field.add(
                name=field,
                number=number,
                type=kind,
                type_name=f".{package}.{type_name}" if type_name else None,
                label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()  # Own pool: nothing else sees these descriptors.
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in _MESSAGES
    }


def _text(pair: Any) -> str:
    # Bytes that are no text were not written by a rank, which shows when they are parsed.
    return pair.value.decode(errors="replace")


# One request to the store; callers retry until their own deadline.
CALL_SECONDS = 10.0


class CoordinationClient:
    """Talks to the coordination service at rank 0's "host:port". Any thread may use it."""

    def __init__(self, address: str):
        self.address = address
        self._messages = _message_classes()
        # A web proxy must not stand between the ranks of a job.
        first, longest = _RECONNECT_MILLISECONDS
        options = [
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_receive_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", first),
            ("grpc.max_reconnect_backoff_ms", longest),
        ]
        self._channel = grpc.insecure_channel(address, options=options)

    def insert(self, key: str, value: str, *, timeout: float, overwrite: bool = False) -> bool:
        """Stores a value; False when the key exists and may not be overwritten."""
        pair = self._messages["KeyValue"](key=key, value=value.encode())
        request = self._messages["InsertRequest"](kv=pair, allow_overwrite=overwrite)
        code = self._call("InsertKeyValue", request, "Empty", timeout)[1]
        return code != grpc.StatusCode.ALREADY_EXISTS

    def try_get(self, key: str, *, timeout: float) -> str | None:
        """The value of a key, None when it is not there."""
        request = self._messages["TryGetRequest"](key=key)
        response = self._call("TryGetKeyValue", request, "TryGetResponse", timeout)[0]
        return None if response is None else _text(response.kv)

    def directory(self, prefix: str, *, timeout: float) -> dict[str, str]:
        """All keys below `prefix` + "/", without the prefix, and their values."""
        request = self._messages["DirectoryRequest"](directory_key=prefix)
        response = self._call("GetKeyValueDir", request, "DirectoryResponse", timeout)[0]
        pairs = [] if response is None else response.kv
        return {pair.key[len(prefix) + 1 :]: _text(pair) for pair in pairs}

    def unhealthy_tasks(self, world_size: int, *, timeout: float) -> dict[int, str]:
        """Ranks whose heartbeats stopped, each with the service's reason."""
        task = self._messages["Task"]
        request = self._messages["TaskStateRequest"](
            source_task=[task(job_name=JOB, task_id=rank) for rank in range(world_size)]
        )
        response = self._call("GetTaskState", request, "TaskStateResponse", timeout)[0]
        states = [] if response is None else response.task_state
        return {s.task.task_id: s.error_message for s in states if s.state == _TASK_ERROR}

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def _call(self, method: str, request: Any, response: str, timeout: float) -> tuple[Any, Any]:
        call = self._channel.unary_unary(
            _SERVICE + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=self._messages[response].FromString,
        )
        try:
            return call(request, timeout=max(timeout, 0.001)), grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()
            if code in (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.NOT_FOUND):
                return None, code
            raise errors.StoreUnavailableError(
                f"rank 0's coordination service at {self.address} did not do {method}: "
                f"{code.name}: {error.details()}",
                refused=code == grpc.StatusCode.UNAVAILABLE,
            ) from None
        except ValueError as error:  # The channel was closed by another thread.
            raise errors.StoreUnavailableError(f"{method}: {error}") from None


class Deadline:
    """A time in the future, and growing pauses until then, for loops that poll the store."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds
        self._pause, self._longest_pause = _POLL_SECONDS

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def expired(self) -> bool:
        """True when no time is left."""
        return self.remaining() == 0.0

    def pause(self) -> None:
        """Sleeps a little, longer every time, but not past the deadline."""
        time.sleep(min(self._pause, self.remaining()))
        self._pause = min(self._pause * 1.5, self._longest_pause)
