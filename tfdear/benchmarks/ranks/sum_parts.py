# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The parts of a HiTopKComm sum, each measured alone.

All ranks start a part together, because they share the cores and the memory of their machine, and
every part finds the memory as the previous part left it, as in a sum.
"""

import ctypes
import time
from collections.abc import Callable

import numpy as np

from tfdear.base.names import Lane, Operation
from tfdear.benchmarks import engine_parts
from tfdear.engine.engine import Engine

# Room for the code of a pair, in float32 elements: more than it needs.
_ELEMENTS_PER_PAIR = 4


class Parts:
    """One sum in parts, with memory of its own; `k` elements are selected from a shard."""

    def __init__(
        self,
        engine: Engine,
        gradient: np.ndarray,
        nodes: int,
        ranks_per_node: int,
        node: int,
        local_rank: int,
        k: int,
        bfloat16: bool,
    ):
        self._engine = engine
        self._nodes = nodes
        self._node = node
        self._ranks_per_node = ranks_per_node
        self._bfloat16 = bfloat16
        self._gradient = gradient
        self._buffer = gradient.copy()
        self._total = gradient.copy()
        start = local_rank * gradient.size // ranks_per_node
        end = (local_rank + 1) * gradient.size // ranks_per_node
        self._shard = self._buffer[start:end]
        self._residual = np.zeros(end - start, np.float32)
        self._values = np.zeros(k, np.float32)
        self._indices = np.zeros(k, np.uint32)
        self._code = np.zeros(_ELEMENTS_PER_PAIR * k + 1024, np.float32)
        self._library = engine_parts.library()
        self._top_k = self._library.tfdear_top_k_create(1)
        self._others = self._codes_of_others()
        self._coded = 0

    def _codes_of_others(self) -> list[np.ndarray]:
        """The code of a selection for each of the other nodes."""
        codes = []
        generator = np.random.default_rng(1)
        for _ in range(self._nodes - 1):
            indices = generator.choice(self._shard.size, self._indices.size, replace=False)
            self._indices[:] = np.sort(indices)
            self._values[:] = generator.exponential(1.0, self._values.size) + 3.0
            self._encode()
            codes.append(self._code.view(np.int8)[: self._coded].copy())
        return codes

    def run(self) -> dict[str, tuple[float, float]]:
        """Does one sum. Returns when each part started and ended, by `time.monotonic`."""
        within = self._ranks_per_node > 1
        parts: dict[str, Callable[[], None]] = {
            "copy in": lambda: _copy(self._buffer, self._gradient),
            "reduce-scatter": lambda: self._within(Operation.REDUCE_SCATTER) if within else None,
            "selection": self._select,
            "coding": self._encode,
            "zeroing": self._zero,
            "all-gather between nodes": self._exchange,
            "adding": self._add,
            "all-gather": lambda: self._within(Operation.ALL_GATHER) if within else None,
            "copy out": lambda: _copy(self._total, self._buffer),
        }
        times = {}
        for name, part in parts.items():
            self._barrier()
            start = time.monotonic()
            part()
            times[name] = (start, time.monotonic())
        return times

    def _barrier(self) -> None:
        self._engine.run_collective(Lane.GRADIENTS, Operation.ALL_REDUCE, np.zeros(1, np.float32))

    def _within(self, operation: Operation) -> None:
        self._engine.run_collective(Lane.GRADIENTS_INTRA, operation, self._buffer)

    def _select(self) -> None:
        self._library.tfdear_top_k_select_with_feedback(
            self._top_k,
            self._shard.ctypes.data,
            self._residual.ctypes.data,
            self._shard.size,
            self._values.size,
            self._values.ctypes.data,
            self._indices.ctypes.data,
        )

    def _encode(self) -> None:
        self._coded = self._library.tfdear_sparse_encode(
            self._indices.ctypes.data,
            self._values.ctypes.data,
            self._values.size,
            self._shard.size,
            self._bfloat16,
            self._code.ctypes.data,
            self._code.nbytes,
        )

    def _zero(self) -> None:
        ctypes.memset(self._shard.ctypes.data, 0, self._shard.nbytes)

    def _exchange(self) -> None:
        between, gather = Lane.GRADIENTS_INTER, Operation.ALL_GATHER
        sizes = np.zeros(self._nodes, np.int64)
        sizes[self._node] = self._coded
        self._engine.run_collective(between, gather, sizes)
        # The codes of all nodes have about the same size; this collective needs equal sizes.
        count = self._nodes * -(-int(sizes.max()) // self._code.itemsize)
        self._engine.run_collective(between, gather, np.zeros(count, np.float32))

    def _add(self) -> None:
        own = self._code.view(np.int8)[: self._coded]
        for code in (own, *self._others):
            failed = self._library.tfdear_sparse_decode_and_add(
                code.ctypes.data,
                code.size,
                self._shard.size,
                self._shard.ctypes.data,
            )
            if failed:
                raise RuntimeError(
                    "the code of a selection cannot be decoded: this is an error in tfdear"
                )


def _copy(target: np.ndarray, source: np.ndarray) -> None:
    ctypes.memmove(target.ctypes.data, source.ctypes.data, source.nbytes)
