# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How far the filling of a cache is, as numbers and in the log."""

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable

from absl import logging

from tfdear.data.read_statistics import ReadStatistics
from tfdear.engine.example_store import ExampleStore

_TELL_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class FillProgress:
    """How far a cache is; rates are means since the filling began, in bytes per second."""

    examples: int  # That this node is to hold, if they fit.
    done: int  # Those of them in its memory.
    seconds: float  # Since the filling began.
    examples_per_second: float
    source_rate: float  # That this rank reads of the source,
    disk_rate: float  # of its disk,
    fetch_rate: float  # and of other nodes.
    seconds_left: float | None  # None: not known yet, or no more fits. 0: it is over.

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {self.seconds_left:.0f} s left"
        source, disk, nodes = (
            f"{rate / 1e6:.1f}" for rate in (self.source_rate, self.disk_rate, self.fetch_rate)
        )
        return (
            f"{self.done} of {self.examples} examples are in this node's memory, "
            f"{self.examples_per_second:.0f} per second; this rank reads {source} MB/s of the "
            f"source, {disk} of its disk and {nodes} of other nodes{left}"
        )


class Filling:
    """Follows the filling of a store.

    Args:
        store: What is filled.
        reads: What its ranks read for it.
        examples: That its node is to hold.
    """

    def __init__(self, store: ExampleStore, reads: ReadStatistics, examples: int):
        self._store, self._reads, self._examples = store, reads, examples
        self._begin: float | None = None
        self._end: float | None = None

    def begin(self) -> None:
        """The first example is asked for."""
        self._begin = time.monotonic()

    def progress(self) -> FillProgress:
        """How far it is."""
        numbers = self._store.progress()
        over = bool(numbers.full) or numbers.held_on_node >= self._examples
        now = time.monotonic()
        if over and self._end is None:
            self._end = now
        begin = now if self._begin is None else self._begin
        seconds = (self._end if over and self._end is not None else now) - begin
        per_second = 1 / seconds if seconds > 0 else 0.0
        rate = numbers.held_on_node * per_second
        left = None
        if over:
            left = 0.0
        elif rate > 0:
            left = (self._examples - numbers.held_on_node) / rate
        return FillProgress(
            examples=self._examples,
            done=numbers.held_on_node,
            seconds=seconds,
            examples_per_second=rate,
            source_rate=self._reads.source_bytes * per_second,
            disk_rate=self._reads.disk_bytes * per_second,
            fetch_rate=numbers.fetched_bytes * per_second,
            seconds_left=left,
        )


def tell(filling: Filling) -> Callable[[], object]:
    """Logs how far the filling is, until it is over; returns what ends that earlier."""
    ended = threading.Event()
    # Of what is followed nothing but this, so that a cache that nobody holds any more can go.
    followed = weakref.ref(filling)

    def follow() -> None:
        while not ended.wait(_TELL_SECONDS):
            known = followed()
            if known is None:
                return
            progress = known.progress()
            del known
            if progress.seconds_left == 0:
                return
            logging.info("tfdear: DataCache: %s", progress)

    threading.Thread(target=follow, name="tfdear-data-progress", daemon=True).start()
    return ended.set
