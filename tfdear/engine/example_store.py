# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Stores of prepared examples in the C++ engine, and their readers."""

import ctypes
import dataclasses
import hashlib
import json
import weakref
from collections.abc import Sequence

from tfdear.engine import c_api

_ADDRESS_BYTES = 1024


@dataclasses.dataclass(frozen=True)
class Connection:
    """A connected socket to another rank."""

    descriptor: int  # Of whoever has the connection.
    name: str  # The same at both ends, and no other connection's of the job.


@dataclasses.dataclass(frozen=True)
class StoreProgress:
    """What has happened in a store so far; the order is that of the engine."""

    held: int  # Examples in memory.
    held_bytes: int
    prepared: int  # Also again.
    prepared_bytes: int
    hits: int  # Examples that were in memory when a reader came for them.
    misses: int  # Examples for which it came before, or which did not fit.
    waited_micros: int  # By readers.
    full: int  # 1: no more fits.
    owned: int  # Examples of this rank.
    held_on_node: int  # By all ranks that share their memory.
    fetched: int  # Examples that other nodes sent.
    fetched_bytes: int
    served: int  # Examples that were sent to other nodes.
    served_bytes: int
    refused: int  # Connections that broke the rules.
    skipped: int  # Examples that this rank had to leave out.


class ExampleStore:
    """Room for the examples that a rank owns, `[begin, end)` of so many, in `memory_bytes`.

    It goes with the last data set that reads it.

    Args:
        examples: All of them.
        own: The first that this rank owns, and the one behind the last.
        memory_bytes: For records, at most.
        timeout: Seconds that another rank may take from one example to the next.
        max_rate: Bytes per second that come from other nodes, at most; 0: as many as there are.
        verify: Whether checksums of what comes from other nodes are compared.
    """

    def __init__(
        self,
        examples: int,
        own: tuple[int, int],
        memory_bytes: int,
        timeout: float,
        max_rate: float = 0.0,
        verify: bool = True,
    ):
        number = ctypes.c_int64()
        self.examples = examples
        c_api.call(
            *("examples_create", examples, *own, memory_bytes, timeout, max_rate, verify),
            ctypes.byref(number),
        )
        self.number = number.value
        # Of each rank, if there are several: its node, the first example that it owns, and the one
        # behind the last.
        self.parts: list[tuple[int, int, int]] = []
        self._finalizer = weakref.finalize(self, _end, self.number)

    def address(self) -> str:
        """Where its examples are, for other ranks of this node."""
        text = ctypes.create_string_buffer(_ADDRESS_BYTES)
        c_api.load().tfdear_examples_address(self.number, text, _ADDRESS_BYTES)
        return text.value.decode()

    def map(self, rank: int, address: str) -> None:
        """Makes the examples of another rank readable, before anything is read.

        Raises:
            TfdearError: Its memory cannot be mapped.
        """
        c_api.call("examples_map", self.number, rank, address.encode())

    def serve(self, connections: Sequence[Connection], key: bytes) -> None:
        """Gives this node's examples to ranks of other nodes, which ask for them by `add_node`.

        Args:
            connections: To them; they belong to the store from now on.
            key: What all ranks of the job have, and nobody else, and what encrypts the connections;
                empty: they stay in the clear.

        Raises:
            TfdearError: They cannot be encrypted here.
        """
        c_api.call("examples_serve", self.number, *_arguments(connections, key))

    def add_node(
        self,
        rank: int,
        ranges: Sequence[tuple[int, int]],
        connections: Sequence[Connection],
        key: bytes,
    ) -> None:
        """Asks a rank of another node for examples.

        Args:
            rank: The one that is asked.
            ranges: First examples of its node, and those behind the last.
            connections: To it, over which it is asked in turns; they belong to the store from now
                on.
            key: As of `serve`.

        Raises:
            TfdearError: They cannot be encrypted here.
        """
        flat = [number for pair in ranges for number in pair]
        c_api.call(
            *("examples_add_node", self.number, rank, (ctypes.c_int64 * len(flat))(*flat)),
            *(len(ranges), *_arguments(connections, key)),
        )

    def unpublish(self) -> None:
        """Says that all ranks have mapped what they need."""
        c_api.load().tfdear_examples_unpublish(self.number)

    def read_in_order(self) -> None:
        """Has examples prepared in the order of their source, if no order has been told yet."""
        c_api.load().tfdear_examples_read_in_order(self.number)

    def await_filled(self, seconds: float) -> bool:
        """Waits until all examples of this rank are there, do not fit, or failed; whether that is.

        Raises:
            TfdearError: One of them failed.
        """
        filled = ctypes.c_int()
        c_api.call("examples_await_filled", self.number, seconds, ctypes.byref(filled))
        return bool(filled.value)

    def close(self) -> None:
        """Ends the preparation; who waits for an example gets an error."""
        self._finalizer()

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return not self._finalizer.alive

    def progress(self) -> StoreProgress:
        """What has happened so far."""
        return progress_of(self.number)


def _arguments(connections: Sequence[Connection], key: bytes) -> tuple:
    """The arguments of functions that take connections."""
    count = len(connections)
    descriptors = (ctypes.c_int * count)(*(one.descriptor for one in connections))
    names = (ctypes.c_char_p * count)(*(one.name.encode() for one in connections))
    return descriptors, names, count, key, len(key)


def progress_of(number: int) -> StoreProgress:
    """What has happened in the store of this number; nothing if there is none any more."""
    fields = dataclasses.fields(StoreProgress)
    numbers = (ctypes.c_int64 * len(fields))()
    c_api.load().tfdear_examples_progress(number, numbers)
    names = [field.name for field in fields]
    return StoreProgress(**dict(zip(names, numbers, strict=True)))


def stop_growing(number: int) -> None:
    """Lets the store of this number keep no more than it has."""
    c_api.load().tfdear_examples_stop_growing(number)


def end(number: int, reason: str) -> None:
    """Ends the preparation for the store of this number; who waits for an example gets a reason."""
    c_api.load().tfdear_examples_close(number, reason.encode())


def note_read(number: int, records: int, begin: float) -> None:
    """Notes for a store that so many raw records were read since `time.monotonic()` was `begin`."""
    c_api.load().tfdear_examples_note_read(number, records, int(begin * 1e6))


def _end(number: int) -> None:
    end(number, "DataCache: the cache was closed")
    c_api.load().tfdear_examples_remove(number)


class ExampleReader:
    """One way to read a store: in which order, and which rows of each batch are this rank's.

    Args:
        store: What is read.
        batch_size: Rows of all ranks.
        shuffle: Whether epochs have orders of their own; else that of the source.
        seed: Of these orders.
        within_nodes: Whether ranks read what their node owns.
        drop_remainder: Whether there is no smaller batch at the end.
        may_skip: Whether examples may be left out.
        start: The epoch and the step of the first iteration.
        rank: This one,
        world_size: of so many.
    """

    def __init__(
        self,
        store: ExampleStore,
        batch_size: int,
        *,
        shuffle: bool,
        seed: int,
        within_nodes: bool,
        drop_remainder: bool,
        may_skip: bool,
        start: tuple[int, int],
        rank: int,
        world_size: int,
    ):
        flat = [number for part in store.parts for number in part] if within_nodes else []
        # The same for readers that go through the same orders.
        content = json.dumps([store.examples, bool(shuffle), seed if shuffle else 0, flat])
        self.order = hashlib.sha256(content.encode()).hexdigest()
        self.number = c_api.load().tfdear_reader_create(
            *(store.number, shuffle, seed, (ctypes.c_int64 * len(flat))(*flat) if flat else None),
            *(batch_size, drop_remainder, may_skip, rank, world_size, *start),
        )
        weakref.finalize(self, c_api.load().tfdear_reader_remove, self.number)

    @property
    def steps(self) -> int:
        """Batches of an epoch."""
        return c_api.load().tfdear_reader_steps(self.number)

    def lead(self) -> None:
        """Has examples prepared in the order of this reader, if no order has been told yet."""
        c_api.load().tfdear_reader_lead(self.number)

    def begin_with(self, epoch: int, step: int = 0) -> None:
        """Says where the next iteration begins."""
        c_api.load().tfdear_reader_set_next(self.number, epoch, step)
