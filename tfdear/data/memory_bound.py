# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where the memory of a cache ends: at its bound, or before the machine has none left."""

import threading
import time
import weakref

from absl import logging

from tfdear.base import memory
from tfdear.engine import example_store

# Memory is taken by parts of so many bytes, of each rank of a node.
_PART_BYTES = 64 << 20
_LOOK_SECONDS = 0.05

_bounds: "weakref.WeakSet[MemoryBound]" = weakref.WeakSet()


def promised_bytes() -> int:
    """What the caches of this process may still take of this node, on all its ranks."""
    return sum(bound.promised_bytes() for bound in list(_bounds))


class MemoryBound:
    """Ends the filling of a store in time, and says that it ended.

    The limits of control groups count. What does not fit is prepared in every epoch.

    Args:
        store: Its number: whoever looks must not keep it.
        ranks: Those of this node, which take memory at the same time.
        node_bytes: The bound, of all of them; 0: nothing is kept, and nothing said.
    """

    def __init__(self, store: int, ranks: int, node_bytes: int):
        self._store = store
        self._ranks = ranks
        self._node_bytes = node_bytes
        self._least_left = _PART_BYTES * (ranks + 1)
        self._lock = threading.Lock()
        self._next_look = 0.0
        self._over = node_bytes == 0
        _bounds.add(self)

    def promised_bytes(self) -> int:
        """What the store may still take, with those of the node's other ranks."""
        numbers = example_store.progress_of(self._store)
        if self._over or numbers.held >= numbers.owned:
            return 0
        return max(0, self._node_bytes - self._ranks * numbers.held_bytes)

    def look(self) -> None:
        """Looks now and then; called again and again while the store is filled."""
        if self._over or time.monotonic() < self._next_look:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            numbers = example_store.progress_of(self._store)
            left = memory.available_bytes()
            if numbers.full:
                self._tell(numbers, "its bound is reached")
            elif left < self._least_left:
                example_store.stop_growing(self._store)
                self._tell(numbers, f"there are {left >> 20} MiB left on this node")
        finally:
            self._lock.release()

    def _tell(self, numbers: example_store.StoreProgress, reason: str) -> None:
        if not self._over:
            self._over = True
            logging.warning(
                "tfdear: DataCache: memory holds %d of this rank's %d examples (%.0f MB), and no "
                "more, since %s. The others are prepared in every epoch.",
                numbers.held,
                numbers.owned,
                numbers.held_bytes / 1e6,
                reason,
            )
