# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The C++ engine's control plane, through ctypes. Data never pass here."""

import ctypes
import enum
import functools
from collections.abc import Sequence

import numpy as np

from tfdear import errors
from tfdear.engine import events as event_record
from tfdear.engine import library as _ops

_TEXT_BYTES = 4096
_SIGNATURE_BYTES = 1 << 16  # With a line for each tensor.
_LARGEST_ADDRESS_BLOB = 1 << 22
_EVENTS_AT_ONCE = 1 << 12


class Lane(enum.IntEnum):
    """A process group with an order of collectives of its own."""

    GRADIENTS = 0
    CONTROL = 1
    INTRA_NODE = 2
    INTER_NODE = 3
    # The two levels that gradients can be summed in.
    GRADIENTS_INTRA = 4
    GRADIENTS_INTER = 5


class Transport(enum.IntEnum):
    """What carries the messages of a process group."""

    GLOO = 0
    SHARED_MEMORY = 1


class Schedule(enum.IntEnum):
    """When the two halves of an all-reduce run."""

    DEAR = 0
    WFBP = 1
    SEQUENTIAL = 2


class Algorithm(enum.IntEnum):
    """How sums are formed: in shards, all on one rank, or in shards of shards, in two levels."""

    SHARDS = 0
    TREE = 1
    LEVELS = 2


class Phase(enum.IntEnum):
    """A collective on a bucket, or a half of one."""

    REDUCE_SCATTER = 0
    ALL_GATHER = 1
    ALL_REDUCE = 2
    SPARSE_GATHER = 3
    REDUCE = 4
    BROADCAST = 5
    INTRA_REDUCE_SCATTER = 6
    INTER_REDUCE_SCATTER = 7
    INTER_ALL_GATHER = 8
    INTRA_ALL_GATHER = 9
    SPARSE_EXCHANGE = 10
    SPARSE_ALL_GATHER = 11


# The engine's ExchangeKind and ValueFormat, by name.
_EXCHANGES = ("all_gather", "reduce")
_VALUE_FORMATS = ("float32", "bfloat16")

# The engine's DataType, by name.
DATA_TYPES = {
    "float16": 0,
    "bfloat16": 1,
    "float32": 2,
    "float64": 3,
    "int32": 4,
    "int64": 5,
}

# Names of status codes, in the order of the engine's StatusCode.
_STATUS_NAMES = (
    "ok",
    "invalid_argument",
    "deadline_exceeded",
    "unavailable",
    "aborted",
    "internal",
    "cancelled",
    "resource_exhausted",
)


class EventReader:
    """Reads the event record from a place of its own, so that readers do not disturb each other.

    It begins with the oldest event that is still there. The engine keeps the last 131072.
    """

    def __init__(self) -> None:
        self._position = ctypes.c_uint64(0)
        # Events that were overwritten before this reader saw them.
        self.lost = 0

    def read_rows(self) -> np.ndarray:
        """The events since the last call, oldest first, as an array of `EVENT_ROW`."""
        pieces = []
        while True:
            rows = np.empty(_EVENTS_AT_ONCE, event_record.EVENT_ROW)
            before = self._position.value
            count = _library().tfdear_events_read(
                ctypes.byref(self._position),
                rows.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)),
                ctypes.c_int64(len(rows)),
            )
            self.lost += self._position.value - before - count
            pieces.append(rows[:count])
            if count < len(rows):
                return np.concatenate(pieces)

    def read(self) -> list[event_record.Event]:
        """The events since the last call, oldest first. Times are seconds of the steady clock."""
        return event_record.to_events(self.read_rows())


@functools.cache
def _library() -> ctypes.CDLL:
    _ops.load()
    library = ctypes.CDLL(str(_ops.library_path()))
    for name in (
        "tfdear_layout_create",
        "tfdear_variable_create",
        "tfdear_events_read",
        "tfdear_layout_plan",
        "tfdear_layout_shared",
    ):
        getattr(library, name).restype = ctypes.c_int64
    library.tfdear_now_micros.restype = ctypes.c_int64
    return library


def _check(call, *arguments) -> None:
    error = ctypes.create_string_buffer(_TEXT_BYTES)
    code = call(*arguments, error, _TEXT_BYTES)
    if code:
        failure = errors.TfdearError(error.value.decode(errors="replace"))
        failure.kind = _STATUS_NAMES[code - 1]
        raise failure


def _address_arguments(blobs: Sequence[bytes]) -> tuple:
    texts = (ctypes.c_char_p * len(blobs))(*blobs)
    lengths = (ctypes.c_int * len(blobs))(*[len(blob) for blob in blobs])
    return texts, lengths, len(blobs)


def sums_of_squares(kind: str, layers: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """What the engine adds up for the norms of layers, all of it in the calling thread.

    Use it to measure the kernel.

    Args:
        kind: "lars" or "lamb".
        layers: Of every layer: gradient, weights and, for LAMB, mean and square of the gradients,
            contiguous and of float32.

    Returns:
        Of every layer: the sums of squares of its weights, and of its gradient or step.
    """
    arrays = [array for layer in layers for array in layer]
    pointers = (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])
    counts = (ctypes.c_int64 * len(layers))(*[layer[0].size for layer in layers])
    sums = np.empty((len(layers), 2))
    _library().tfdear_sums_of_squares(
        int(kind == "lamb"),
        pointers,
        counts,
        len(layers),
        sums.ctypes.data_as(ctypes.c_void_p),
    )
    return sums


class OpenReduction:
    """An execution of a layout, driven from Python: `Engine.open_reduction`."""

    def __init__(self, number: int):
        self._number = ctypes.c_int64(number)

    def contribute(self, tensor: int, data: np.ndarray) -> None:
        """Adds this rank's share of a tensor."""
        _check(
            _library().tfdear_reduction_contribute,
            self._number,
            tensor,
            data.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(data.size),
        )

    def wait(self, tensor: int, timeout: float, out: np.ndarray | None = None) -> float:
        """Waits for the sum of a tensor and copies it to `out`, if that is given.

        Returns:
            When the sum was there, in seconds of `time.monotonic`.
        """
        since = ctypes.c_int64()
        _check(
            _library().tfdear_reduction_wait,
            self._number,
            tensor,
            None if out is None else out.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(0 if out is None else out.nbytes),
            ctypes.c_double(timeout),
            ctypes.byref(since),
        )
        return since.value / 1e6

    def close(self) -> None:
        """Gives up the reduction; sums that are still on their way arrive unseen."""
        _library().tfdear_reduction_close(self._number)


class Engine:
    """This process's engine: groups, layouts of reductions, failures and the event record."""

    def open_group(
        self,
        lane: Lane,
        name: str,
        ranks: Sequence[int],
        rank: int,
        bind_address: str,
        timeout: float,
        direct: bool,
        connections: int,
        transport: Transport = Transport.GLOO,
    ) -> bytes:
        """Creates a lane's process group and returns the address blob to publish.

        A group that is not connected can be opened again, over another transport.

        `direct`: whether ranks may exchange shards with all others at once; where several ranks
        share a node's network and reach other nodes through it, a ring moves fewer bytes there.
        `connections`: to each member, for Gloo.
        """
        library = _library()
        members = (ctypes.c_int * len(ranks))(*ranks)
        _check(
            library.tfdear_group_create,
            int(lane),
            name.encode(),
            members,
            len(ranks),
            list(ranks).index(rank),
            bind_address.encode(),
            ctypes.c_double(timeout),
            -1 if direct else 0,
            int(transport),
            int(connections),
        )
        blob = ctypes.create_string_buffer(_LARGEST_ADDRESS_BLOB)
        length = library.tfdear_group_listen(int(lane), blob, _LARGEST_ADDRESS_BLOB)
        if length < 0:
            raise errors.TfdearError(f"the addresses of process group {name!r} are too long")
        return blob.raw[:length]

    def probe_group(self, lane: Lane, blobs: Sequence[bytes]) -> None:
        """Raises TfdearError unless this rank can reach the members whose blobs are given."""
        _check(_library().tfdear_group_probe, int(lane), *_address_arguments(blobs))

    def connect_group(self, lane: Lane, blobs: Sequence[bytes]) -> None:
        """Connects a lane's process group to the members whose address blobs are given."""
        _check(_library().tfdear_group_connect, int(lane), *_address_arguments(blobs))

    def start(
        self,
        schedule: Schedule,
        algorithm: Algorithm,
        bucket_bytes: int,
        max_delay_ms: int,
        first_agreement: int,
    ) -> None:
        """Hands the connected groups to the engine. Once per process."""
        _check(
            _library().tfdear_start,
            int(schedule),
            int(algorithm),
            ctypes.c_int64(bucket_bytes),
            int(max_delay_ms),
            ctypes.c_int64(first_agreement),
        )

    def compress(
        self,
        *,
        exchange: str,
        values: str,
        error_feedback: bool,
        momentum: float | None,
        samplings: int,
        warm_up_steps: int,
        first_density: float,
        only_optimizers_warm_up: bool,
        at_least: int,
        hierarchical: bool,
    ) -> None:
        """Compresses gradients from now on; before the first use of a layout, on all ranks alike.

        The arguments are those of `tfdear.compression.MSTopK`; `first_density`: that of the first
        step of the warm-up; `only_optimizers_warm_up`: other sums have the final density at once;
        `at_least`: elements of the smallest bucket that is compressed, negative for none. Until
        `set_density` everything is sent dense.
        """
        _check(
            _library().tfdear_compress,
            _EXCHANGES.index(exchange),
            _VALUE_FORMATS.index(values),
            int(error_feedback),
            ctypes.c_double(momentum or 0.0),
            int(momentum is None),
            samplings,
            ctypes.c_int64(warm_up_steps),
            ctypes.c_double(first_density),
            int(only_optimizers_warm_up),
            ctypes.c_int64(at_least),
            int(hierarchical),
        )

    def set_density(self, density: float) -> None:
        """Sets the density of the steps that begin from now on; 1: everything is sent dense."""
        _check(_library().tfdear_set_density, ctypes.c_double(density))

    def save_compression(self) -> bytes:
        """What sparse exchanges hold back on this rank; waits for those in flight."""
        state = ctypes.POINTER(ctypes.c_char)()
        size = ctypes.c_int64()
        _check(_library().tfdear_compression_save, ctypes.byref(state), ctypes.byref(size))
        return ctypes.string_at(state, size.value)

    def load_compression(self, state: bytes) -> None:
        """Takes up what was saved; empty: nothing is held back any more."""
        _check(_library().tfdear_compression_load, state, ctypes.c_int64(len(state)))

    def create_layout(self, name: str, lane: Lane) -> int:
        """Starts the description of a reduction; returns its number."""
        return _library().tfdear_layout_create(name.encode(), int(lane))

    def add_tensor(self, layout: int, data_type: int, count: int, sparse: bool) -> None:
        """Adds a tensor of `count` elements (-1: known at run time) to a layout."""
        _check(
            _library().tfdear_layout_add,
            ctypes.c_int64(layout),
            data_type,
            ctypes.c_int64(count),
            int(sparse),
        )

    def set_lane(self, layout: int, lane: Lane) -> None:
        """Moves a layout that was not used yet to another lane."""
        _check(_library().tfdear_layout_set_lane, ctypes.c_int64(layout), int(lane))

    def set_variable(
        self, layout: int, tensor: int, variable: int, *, name: str, comparable: str, kind: str
    ) -> None:
        """Says whose gradient a tensor of a layout is; before the first use.

        Args:
            layout: The layout.
            tensor: The tensor.
            variable: The engine's number of the variable.
            name: Its name, for messages.
            comparable: What of the name is alike on all ranks.
            kind: Its type and shape.
        """
        _check(
            _library().tfdear_layout_set_variable,
            ctypes.c_int64(layout),
            tensor,
            ctypes.c_int64(variable),
            name.encode(),
            comparable.encode(),
            kind.encode(),
        )

    def shared_layout(self, layout: int) -> int:
        """The layout whose plan this one follows: itself, or another trace of the same step."""
        return int(_library().tfdear_layout_shared(ctypes.c_int64(layout)))

    def set_optimizer(self, layout: int, momentum: float) -> None:
        """Says that an optimizer gets the sums, with what momentum; before the first use."""
        _check(
            _library().tfdear_layout_set_optimizer,
            ctypes.c_int64(layout),
            ctypes.c_double(momentum),
        )

    def request_norms(self, layout: int, tensor: int) -> None:
        """Announces that an update will want norms with the sum of a tensor of a layout."""
        _check(_library().tfdear_layout_request_norms, ctypes.c_int64(layout), tensor)

    def set_plan(self, layout: int, plan: Sequence[int]) -> None:
        """Sets the encoded plan that a layout starts with; before its first use, on all ranks."""
        _check(
            _library().tfdear_layout_set_plan,
            ctypes.c_int64(layout),
            (ctypes.c_int64 * max(len(plan), 1))(*plan),
            ctypes.c_int64(len(plan)),
        )

    def propose(self, layout: int, plan: Sequence[int], next_agreement: int) -> None:
        """Rank 0: hands over what the ranks will hear at their next agreement on a plan.

        Args:
            layout: The layout.
            plan: An encoded plan; empty to keep the one in use.
            next_agreement: Executions from that agreement to the one after it.

        Raises:
            TfdearError: The plan does not hold for the layout's tensors.
        """
        _check(
            _library().tfdear_layout_propose,
            ctypes.c_int64(layout),
            (ctypes.c_int64 * max(len(plan), 1))(*plan),
            ctypes.c_int64(len(plan)),
            ctypes.c_int64(next_agreement),
        )

    def plan(self, layout: int) -> tuple[list[int], int]:
        """The encoded plan of a layout's last execution, and how many executions there were."""
        library = _library()
        executions = ctypes.c_int64()
        count = library.tfdear_layout_plan(
            ctypes.c_int64(layout), None, ctypes.c_int64(-1), ctypes.byref(executions)
        )
        while True:
            words = (ctypes.c_int64 * max(count, 1))()
            needed = library.tfdear_layout_plan(
                ctypes.c_int64(layout), words, ctypes.c_int64(count), ctypes.byref(executions)
            )
            if needed <= count:
                return list(words[:needed]), executions.value
            count = needed

    def bucket_bytes(self, layout: int) -> list[int]:
        """Sizes of a layout's buckets in bytes; empty before its first use."""
        library = _library()
        count = library.tfdear_layout_buckets(ctypes.c_int64(layout), None, 0)
        sizes = (ctypes.c_int64 * max(count, 1))()
        library.tfdear_layout_buckets(ctypes.c_int64(layout), sizes, count)
        return list(sizes[:count])

    def create_variable(self) -> int:
        """Returns the number of a new variable that updates can be put off on."""
        return _library().tfdear_variable_create()

    def synchronize(self, timeout: float) -> None:
        """Waits until no update is in flight."""
        _check(_library().tfdear_synchronize, ctypes.c_double(timeout))

    def in_flight(self) -> list[dict]:
        """The collectives that run now, one per busy lane."""
        library = _library()
        running = []
        for lane in Lane:
            sequence = ctypes.c_uint64()
            seconds = ctypes.c_double()
            waiting_for = ctypes.c_int()
            signature = ctypes.create_string_buffer(_SIGNATURE_BYTES)
            if library.tfdear_in_flight(
                int(lane),
                ctypes.byref(sequence),
                ctypes.byref(seconds),
                ctypes.byref(waiting_for),
                signature,
                _SIGNATURE_BYTES,
            ):
                text, *tensors = signature.value.decode(errors="replace").splitlines()
                running.append(
                    {
                        "group": lane.name.lower(),
                        "sequence": sequence.value,
                        "signature": text,
                        "tensors": tensors,
                        "seconds": seconds.value,
                        "waiting_for": waiting_for.value,
                    }
                )
        return running

    def failure(self) -> dict | None:
        """A transport error that the engine holds back until its cause is known."""
        peer = ctypes.c_int(-1)
        message = ctypes.create_string_buffer(_TEXT_BYTES)
        code = _library().tfdear_transport_failure(ctypes.byref(peer), message, _TEXT_BYTES)
        if not code:
            return None
        return {
            "message": message.value.decode(errors="replace"),
            "peer": peer.value,
            "kind": _STATUS_NAMES[code - 1],
        }

    def abort(self, kind: str, message: str) -> None:
        """Fails everything that waits now and everything later. The first cause wins."""
        _library().tfdear_abort(_STATUS_NAMES.index(kind), message.encode())

    def aborted(self) -> str | None:
        """The cause of the abort, or None."""
        message = ctypes.create_string_buffer(_TEXT_BYTES)
        if not _library().tfdear_aborted(message, _TEXT_BYTES):
            return None
        return message.value.decode(errors="replace")

    def run_collective(
        self,
        lane: Lane,
        phase: Phase,
        data: np.ndarray,
        *,
        warm_up: int = 0,
        repeats: int = 1,
        root: int = 0,
    ) -> float:
        """Runs one collective back to back on the elements of an array, in place.

        Use it to measure links; all members of the lane's group must call it alike.

        Args:
            lane: Whose group.
            phase: Which collective.
            data: A contiguous array; every rank's has the same size.
            warm_up: How often it runs before the time is taken. Defaults to 0.
            repeats: How often it runs then. Defaults to 1.
            root: Of a reduce or a broadcast. Defaults to 0.

        Returns:
            Seconds that the repeats took.
        """
        seconds = ctypes.c_double()
        _check(
            _library().tfdear_collective_run,
            int(lane),
            int(phase),
            data.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(data.size),
            DATA_TYPES[data.dtype.name],
            root,
            warm_up,
            repeats,
            ctypes.byref(seconds),
        )
        return seconds.value

    def open_reduction(self, layout: int) -> "OpenReduction":
        """Starts an execution of a layout without a TensorFlow graph."""
        number = ctypes.c_int64()
        _check(_library().tfdear_reduction_open, ctypes.c_int64(layout), ctypes.byref(number))
        return OpenReduction(number.value)

    def counters(self, lane: Lane) -> dict[str, int]:
        """Collectives run and bytes sent by this rank in a lane so far."""
        collectives = ctypes.c_uint64()
        bytes_sent = ctypes.c_uint64()
        _library().tfdear_counters(int(lane), ctypes.byref(collectives), ctypes.byref(bytes_sent))
        return {"collectives": collectives.value, "bytes_sent": bytes_sent.value}
