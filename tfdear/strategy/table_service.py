# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Hands rows of sharded tables to ranks that read the whole, without a collective.

[Note: Reading whole tables]
`save` on the chief alone must not wait for the other ranks to call something. So every rank has a
server that hands out the rows it holds. A reader says how many changes of the table it has seen; a
rank waits until it has made as many. It cannot have made more: the next change of a step needs a
gradient of the reader's, and others, such as what a script writes, wait for all ranks first
(`ShardedVariable.assign`, `table_steps`). A rank whose script has ended serves until the scripts of
all have; rank 0 waits for them, up to `timeout`.
"""

import concurrent.futures
import queue
import struct
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
from absl import logging

from tfdear import errors
from tfdear.base.patience import Patience
from tfdear.gradients.placement import Placement
from tfdear.gradients.sharded_variable import ShardedVariable
from tfdear.job import job as job_module

_SERVICE = "tfdear.Tables"
# The variable's number, the changes it must have, and the rows of the server's part.
_REQUEST = struct.Struct("<4q")
_RANK = struct.Struct("<q")
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
_PAUSE_SECONDS = 0.002
_LOOK_SECONDS = 0.2  # Between two looks at what became of the job, in a wait for an answer.
_FAREWELL_SECONDS = 5.0


class TableService:
    """Serves this rank's parts of tables, and reads whole ones. Create it on all ranks together."""

    def __init__(self, job: job_module.Job):
        self._job = job
        self._variables: weakref.WeakValueDictionary[int, ShardedVariable] = (
            weakref.WeakValueDictionary()
        )
        self._count = 0
        self._chief_is_done = threading.Event()
        self._ended: set[int] = set()  # The ranks that have told rank 0 so.
        self._daemon = _Daemon()
        self._server = grpc.server(self._daemon, options=[*_OPTIONS, *job.server_limits])
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    _SERVICE,
                    {
                        "Read": grpc.unary_unary_rpc_method_handler(self._serve),
                        "Farewell": grpc.unary_unary_rpc_method_handler(self._note_farewell),
                    },
                )
            ]
        )
        address = job.listen(self._server)
        self._server.start()
        published = job.exchange(address)
        self._peers = [_Peer(text, rank, job) for rank, text in enumerate(published)]
        job.ending.add(self._close)

    def add(self, variable: ShardedVariable) -> int:
        """Takes up a table or a slot; all ranks add theirs in the same order."""
        number = self._count
        self._count += 1
        self._variables[number] = variable
        return number

    def read_rows(self, variable: ShardedVariable, begin: int, end: int) -> np.ndarray:
        """Rows of the whole of a table or a slot, as they are at this point of the program."""
        placement = variable.placement
        self._check_chief(variable)
        changes = variable.changes()
        rows = np.empty((end - begin, placement.partition.columns), np.float32)
        pending = []
        for rank in range(placement.partition.ranks):
            part = _part(placement, rank, begin, end)
            if rank == placement.rank or 0 in part.shape:
                continue
            request = _REQUEST.pack(variable.shard_number, changes, part.begin, part.end)
            answer = self._peers[rank].call("Read", request, self._job.options.timeout)
            pending.append((rank, part, answer))
        own = _part(placement, placement.rank, begin, end)
        own.put(rows, variable.read_shard(own.begin, own.end, changes).numpy())
        for rank, part, answer in pending:
            data = self._wait_for(answer, variable, rank)
            part.put(rows, np.frombuffer(data, np.float32).reshape(part.shape))
        return rows

    def _wait_for(self, answer: Any, variable: ShardedVariable, rank: int) -> bytes:
        """What a rank answers, unless it is known meanwhile that it will not."""
        while True:
            try:
                return answer.result(timeout=_LOOK_SECONDS)
            except grpc.RpcError as error:
                self._check_chief(variable)
                raise self._failure(variable, rank, error) from None
            except grpc.FutureTimeoutError:
                if self._job.monitor is not None:
                    self._job.monitor.check_alive()
                self._check_chief(variable)

    def _check_chief(self, variable: ShardedVariable) -> None:
        if self._chief_is_done.is_set():
            raise errors.TfdearError(
                f"Rank {self._job.rank} cannot read {variable.placement.label} as a whole: every "
                "rank holds a part of it, and rank 0 has ended its script and waited `timeout` "
                "seconds for this rank's. Read them before, or raise `timeout`."
            )

    def _failure(self, variable: ShardedVariable, rank: int, error: Any) -> Exception:
        failure = errors.TfdearError(
            f"Rank {self._job.rank} could not read the part of {variable.placement.label} that "
            f"rank {rank} holds: {error.code().name.lower()}, {error.details()}. Every rank serves "
            "its part until all scripts have ended: see the log of that rank."
        )
        monitor = self._job.monitor
        if monitor is None:
            return failure
        # Who has died closes its connections; who is stopped does not.
        lost = error.code() == grpc.StatusCode.UNAVAILABLE
        return monitor.cause_of(failure, "could not read a table", rank if lost else -1)

    def _serve(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        number, changes, begin, end = _REQUEST.unpack(request)
        self._wait(
            lambda: number < self._count,
            context,
            lambda: "it has not created the table: the rank has not come as far in its script",
        )
        variable = self._variables.get(number)
        if variable is None:
            context.abort(
                grpc.StatusCode.NOT_FOUND,
                "the rank has deleted the model; keep it until rank 0 has saved",
            )
            return b""  # It has raised.
        self._wait(
            lambda: variable.complete_changes() >= changes,
            context,
            lambda: (
                f"the table has {variable.complete_changes()} of {changes} updates: the rank "
                "has not come as far in its script"
            ),
        )
        return variable.read_shard(begin, end, changes).numpy().tobytes()

    @staticmethod
    def _wait(
        done: Callable[[], bool], context: grpc.ServicerContext, state: Callable[[], str]
    ) -> None:
        """Waits for this rank's script, at most as long as the reader does."""
        while not done():
            if (context.time_remaining() or 0) <= 2 * _PAUSE_SECONDS:
                context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, state())
            time.sleep(_PAUSE_SECONDS)

    def _note_farewell(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        del context
        (rank,) = _RANK.unpack(request)
        if rank == 0:
            self._chief_is_done.set()
        self._ended.add(rank)
        return b""

    def _close(self) -> None:
        """Ends the service when the scripts of all ranks have ended."""
        monitor = self._job.monitor
        if monitor is None or not monitor.healthy:
            return
        farewell = _RANK.pack(self._job.rank)
        if self._job.rank == 0:
            deadline = time.monotonic() + self._job.options.timeout
            while monitor.healthy and len(self._ended) + 1 < len(self._peers):
                if time.monotonic() > deadline:
                    break
                time.sleep(_PAUSE_SECONDS)
            calls = [p.call("Farewell", farewell, _FAREWELL_SECONDS) for p in self._peers[1:]]
            for call in calls:
                call.exception()  # Of one that is gone there is nothing to say here.
        else:
            self._peers[0].call("Farewell", farewell, _FAREWELL_SECONDS).exception()
            patience = Patience()
            while monitor.healthy and not self._chief_is_done.wait(0.1):
                if seconds := patience.ran_out():
                    logging.warning(
                        "tfdear: rank %d stays, though its script ended %.0f s ago, until that of "
                        "rank 0 ends, too, which may still read this rank's parts of tables.",
                        self._job.rank,
                        seconds,
                    )
        for peer in self._peers:
            peer.close()
        # The others close their channels, too: a server that stops before makes gRPC log it there.
        self._server.stop(_FAREWELL_SECONDS).wait(_FAREWELL_SECONDS)
        self._daemon.shutdown(wait=False)


class _Peer:
    """Another rank's service."""

    def __init__(self, address: str, rank: int, job: job_module.Job):
        self._address = address
        self._rank = rank
        self._job = job
        self._channel: grpc.Channel | None = None

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def call(self, method: str, request: bytes, timeout: float) -> Any:
        if self._channel is None:
            self._channel = self._job.channel(self._rank, self._address, _OPTIONS)
        return self._channel.unary_unary(f"/{_SERVICE}/{method}").future(
            request, timeout=timeout, wait_for_ready=True
        )


class _Part:
    """What a rank holds of some rows of a whole table."""

    def __init__(self, begin: int, end: int, rows: slice, columns: range):
        self.begin = begin
        self.end = end
        self._rows = rows
        self._columns = columns

    @property
    def shape(self) -> tuple[int, int]:
        return self.end - self.begin, len(self._columns)

    def put(self, rows: np.ndarray, values: np.ndarray) -> None:
        rows[self._rows, self._columns.start : self._columns.stop] = values


def _part(placement: Placement, rank: int, begin: int, end: int) -> _Part:
    columns = placement.partition.columns_of(rank)
    if placement.partition.kind == "column":
        return _Part(begin, end, slice(None), columns)
    ranks = placement.partition.ranks
    first, last = (-(-(row - rank) // ranks) for row in (begin, end))
    return _Part(first, last, slice(first * ranks + rank - begin, None, ranks), columns)


class _Daemon(concurrent.futures.Executor):
    """Runs calls in one thread, also while exit handlers run, when a thread pool refuses them."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._work, name="tfdear_tables", daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        future: concurrent.futures.Future = concurrent.futures.Future()
        self._calls.put((future, fn, args, kwargs))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, fn, args, kwargs = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)
