# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The C++ engine's control plane, through ctypes. Data never pass here."""

import ctypes
from collections.abc import Sequence

import numpy as np

from tfdear.base import names
from tfdear.base.names import Lane
from tfdear.engine import table_counts
from tfdear.engine.c_api import call, load
from tfdear.engine.open_reduction import OpenReduction

_TEXT_BYTES = 4096
_SIGNATURE_BYTES = 1 << 16  # With a line for each tensor.


class Engine:
    """This process's engine: groups, layouts of reductions, failures and the event record.

    There is one. Whoever is handed an instance may use the engine; instances hold nothing.
    """

    def start(self, max_delay_ms: int, first_agreement: int, tables_first: bool) -> None:
        """Hands the opened groups to the engine, until `stop`."""
        call("start", max_delay_ms, first_agreement, tables_first)

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
        hierarchical: bool,
    ) -> None:
        """Compresses gradients from now on; before the first use of a layout, on all ranks alike.

        The arguments are those of `tfdear.compression.MSTopK`; `first_density`: that of the first
        step of the warm-up; `only_optimizers_warm_up`: other sums have the final density at once;
        `hierarchical`: sums of nodes are exchanged, else the ranks' own. Until `set_density`
        everything is sent dense.
        """
        call(
            "compress",
            names.EXCHANGES.index(exchange),
            names.VALUE_FORMATS.index(values),
            error_feedback,
            momentum or 0.0,
            int(momentum is None),
            samplings,
            warm_up_steps,
            first_density,
            only_optimizers_warm_up,
            hierarchical,
        )

    def set_density(self, density: float) -> None:
        """Sets the density of the steps that begin from now on; 1: everything is sent dense."""
        call("set_density", density)

    def save_compression(self, variables: Sequence[int] = ()) -> bytes:
        """What sparse exchanges hold back on this rank; waits for those in flight.

        `variables`: of whose gradients, by their numbers; none: of all.
        """
        state = ctypes.POINTER(ctypes.c_char)()
        size = ctypes.c_int64()
        numbers = (ctypes.c_int64 * len(variables))(*variables)
        call(
            "compression_save",
            *(numbers, len(variables), ctypes.byref(state), ctypes.byref(size)),
        )
        try:
            # It may have more than 2 GiB, which `ctypes.string_at` does not copy.
            array = ctypes.POINTER(ctypes.c_char * size.value)
            return ctypes.cast(state, array).contents.raw if state else b""
        finally:
            load().tfdear_compression_forget()

    def load_compression(self, state: bytes, variables: Sequence[int] = ()) -> None:
        """Takes up what was saved of these variables; empty: nothing is held back any more."""
        numbers = (ctypes.c_int64 * len(variables))(*variables)
        call("compression_load", state, len(state), numbers, len(variables))

    def create_layout(self, name: str, lane: Lane) -> int:
        """Starts the description of a reduction; returns its number."""
        return load().tfdear_layout_create(name.encode(), lane)

    def add_tensor(self, layout: int, data_type: int, count: int, sparse: bool) -> None:
        """Adds a tensor of `count` elements (-1: known at run time) to a layout."""
        call("layout_add", layout, data_type, count, sparse)

    def set_lane(self, layout: int, lane: Lane) -> None:
        """Moves a layout that was not used yet to another lane."""
        call("layout_set_lane", layout, lane)

    def set_variable(
        self, layout: int, tensor: int, variable: int, *, name: str, comparable: str, kind: str
    ) -> None:
        """Says whose gradient a tensor of a layout is; before the first use.

        `comparable`: what of the variable's name is alike on all ranks; `kind`: type and shape.
        """
        texts = (name.encode(), comparable.encode(), kind.encode())
        call("layout_set_variable", layout, tensor, variable, *texts)

    def set_partition(self, layout: int, tensor: int, column_begins: Sequence[int]) -> None:
        """Says that a tensor is the gradient of a table that the ranks hold in parts.

        Its rows go to the ranks that hold them, instead of to all; before the first use.
        `column_begins`: where each rank's columns begin, and where the last ones end; empty: a rank
        holds the rows whose number is its own, modulo the number of ranks.
        """
        begins = (ctypes.c_int64 * len(column_begins))(*column_begins)
        call("layout_set_partition", layout, tensor, begins, len(column_begins))

    def set_table(
        self, layout: int, tensor: int, variable: int, rows: int, most_gathered: int
    ) -> None:
        """Says that a sparse tensor is the gradient of this table; before the first use.

        `rows`: of a table that all ranks have whole, else 0. With more than `most_gathered` rows of
        all ranks together, they are summed on their way, else gathered.
        """
        call("layout_set_table", layout, tensor, variable, rows, most_gathered)

    def row_counts(self, variable: int) -> table_counts.RowCounts:
        """What was seen of a table's rows on this rank, since the start."""
        return table_counts.read(variable)

    def create_lookup(self) -> int:
        """Starts the description of a lookup in sharded tables; returns its number."""
        return load().tfdear_lookup_create()

    def add_lookup_table(
        self, lookup: int, column_begins: Sequence[int], columns: int, variable: int, name: str
    ) -> None:
        """Adds a table to a lookup that was not used yet.

        `variable`: the table's number; `name`: what all ranks call it.
        """
        begins = (ctypes.c_int64 * len(column_begins))(*column_begins)
        call("lookup_add", lookup, begins, len(column_begins), columns, variable, name.encode())

    def look_ahead(self, lookup: int) -> None:
        """Says of a lookup that its steps know the ids of the next one; before its first use."""
        call("lookup_look_ahead", lookup)

    def look_up_early(self, lookup: int, table: int) -> None:
        """Says that a table's vectors are looked up for the next step where this leaves them."""
        call("lookup_early", lookup, table)

    def may_pool(self, lookup: int, table: int, element_bytes: int) -> None:
        """Says that the holders of a table's columns may pool vectors of such elements."""
        call("lookup_may_pool", lookup, table, element_bytes)

    def shared_layout(self, layout: int) -> int:
        """The layout whose plan this one follows: itself, or another trace of the same step."""
        return load().tfdear_layout_shared(layout)

    def set_optimizer(self, layout: int, momentum: float) -> None:
        """Says that an optimizer gets the sums, with what momentum; before the first use."""
        call("layout_set_optimizer", layout, momentum)

    def request_norms(self, layout: int, tensor: int) -> None:
        """Announces that an update will want norms with the sum of a tensor of a layout."""
        call("layout_request_norms", layout, tensor)

    def set_plan(self, layout: int, plan: Sequence[int]) -> None:
        """Sets the encoded plan that a layout starts with; before its first use, on all ranks."""
        call("layout_set_plan", layout, (ctypes.c_int64 * len(plan))(*plan), len(plan))

    def propose(self, layout: int, plan: Sequence[int], next_agreement: int) -> None:
        """Rank 0: hands over what the ranks will hear at their next agreement on a plan.

        An empty plan keeps the one in use. `next_agreement`: executions from that agreement to the
        one after it.
        """
        words = (ctypes.c_int64 * len(plan))(*plan)
        call("layout_propose", layout, words, len(plan), next_agreement)

    def plan(self, layout: int) -> tuple[list[int], int]:
        """The encoded plan of a layout's last execution, and how many executions there were."""
        executions = ctypes.c_int64()
        count = 0
        while True:
            words = (ctypes.c_int64 * max(count, 1))()
            needed = load().tfdear_layout_plan(layout, words, count, ctypes.byref(executions))
            if needed <= count:
                return list(words[:needed]), executions.value
            count = needed

    def bucket_bytes(self, layout: int) -> list[int]:
        """Sizes of a layout's buckets in bytes; empty before its first use."""
        library = load()
        count = library.tfdear_layout_buckets(layout, None, 0)
        sizes = (ctypes.c_int64 * max(count, 1))()
        library.tfdear_layout_buckets(layout, sizes, count)
        return list(sizes[:count])

    def create_variable(self) -> int:
        """Returns the number of a new variable that updates can be put off on."""
        return load().tfdear_variable_create()

    def synchronize(self, timeout: float) -> None:
        """Waits until no update is in flight."""
        call("synchronize", timeout)

    def waits(self) -> tuple[int, list[str]]:
        """The ops that wait, and a number that is another one as soon as anything happens."""
        ops = ctypes.create_string_buffer(_SIGNATURE_BYTES)
        state = load().tfdear_waits(ops, _SIGNATURE_BYTES)
        return state, ops.value.decode(errors="replace").splitlines()

    def stop(self, timeout: float) -> None:
        """Frees groups, layouts and lookups, once no update is in flight.

        It may be started again then, unless it was aborted. It stops in any case.

        Raises:
            TfdearError: Updates failed, or were still in flight after `timeout` seconds.
        """
        call("stop", timeout)

    def in_flight(self) -> list[dict]:
        """The collectives that run now, one per busy lane."""
        running = []
        opened = self.opened()
        for lane in Lane:
            sequence, seconds, waiting_for = ctypes.c_uint64(), ctypes.c_double(), ctypes.c_int()
            signature = ctypes.create_string_buffer(_SIGNATURE_BYTES)
            if load().tfdear_in_flight(
                lane,
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
                        "opened": opened,
                    }
                )
        return running

    def opened(self) -> dict[str, int]:
        """How many tickets were opened so far, by lane, at one moment."""
        before = None
        while (now := {lane.name.lower(): load().tfdear_opened(lane) for lane in Lane}) != before:
            before = now
        return now

    def failure(self) -> dict | None:
        """A transport error that the engine holds back until its cause is known."""
        peer = ctypes.c_int(-1)
        message = ctypes.create_string_buffer(_TEXT_BYTES)
        code = load().tfdear_transport_failure(ctypes.byref(peer), message, _TEXT_BYTES)
        if not code:
            return None
        return {
            "message": message.value.decode(errors="replace"),
            "peer": peer.value,
            "kind": names.STATUS_CODES[code - 1],
        }

    def abort(self, kind: str, message: str) -> None:
        """Fails everything that waits now and everything later. The first cause wins."""
        load().tfdear_abort(names.STATUS_CODES.index(kind), message.encode())

    def aborted(self) -> str | None:
        """The cause of the abort, or None."""
        message = ctypes.create_string_buffer(_TEXT_BYTES)
        aborted = load().tfdear_aborted(message, _TEXT_BYTES)
        return message.value.decode(errors="replace") if aborted else None

    def run_collective(
        self,
        lane: Lane,
        operation: names.Operation,
        data: np.ndarray,
        *,
        warm_up: int = 0,
        repeats: int = 1,
        root: int = 0,
    ) -> float:
        """Runs one collective on the elements of an array, in place; returns the seconds it took.

        All members of the lane's group must call it alike, with contiguous arrays of one size. It
        runs `warm_up` times before the time is taken, and then `repeats` times back to back.
        """
        seconds = ctypes.c_double()
        call(
            "collective_run",
            lane,
            operation,
            data.ctypes.data,
            data.size,
            names.data_type(data.dtype.name),
            root,
            warm_up,
            repeats,
            ctypes.byref(seconds),
        )
        return seconds.value

    def set_connections(self, lane: Lane, number: int) -> None:
        """Uses so many connections to each peer in a lane over TCP from now on.

        All members of the lane's group must call it at the same place among their collectives.
        """
        call("group_set_connections", lane, number)

    def open_reduction(self, layout: int) -> "OpenReduction":
        """Starts an execution of a layout without a TensorFlow graph."""
        number = ctypes.c_int64()
        call("reduction_open", layout, ctypes.byref(number))
        return OpenReduction(number.value)

    def counters(self, lane: Lane) -> dict[str, int]:
        """Collectives run and bytes sent by this rank in a lane so far."""
        collectives, bytes_sent = ctypes.c_uint64(), ctypes.c_uint64()
        load().tfdear_counters(lane, ctypes.byref(collectives), ctypes.byref(bytes_sent))
        return {"collectives": collectives.value, "bytes_sent": bytes_sent.value}
