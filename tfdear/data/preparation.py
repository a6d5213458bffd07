# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""From raw records to examples: the traced function, and the thread that calls it."""

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfdear.data import graph_text
from tfdear.data.memory_bound import MemoryBound
from tfdear.data.read_statistics import ReadStatistics
from tfdear.data.record_source import RecordSource, fingerprint_of
from tfdear.engine import example_store, library

# Records that are read and prepared in one call.
_BLOCK = 64
# One reads while another prepares.
_BLOCKS_AT_A_TIME = 2

_CHANGING = (
    "`prepare` must give the same example each time, since each is prepared once and kept; it {} "
    "({}). Do what is random behind the cache: `cache.batches(...).map(augment)`."
)
# How the names of operations begin that change what outlives a call.
_WRITES = (
    "Assign",
    "LookupTableInsert",
    "LookupTableRemove",
    "ResourceScatter",
    "ResourceStridedSliceAssign",
)
_PYTHON_CALLS = frozenset(("PyFunc", "PyFuncStateless", "EagerPyFunc"))


@dataclasses.dataclass(frozen=True, eq=False)
class Preparation:
    """A traced `prepare`: what it returns, and a function of flat tensors."""

    element_spec: object
    function: Any  # A concrete function.
    calls_python: bool  # So that its graph does not tell whether it is random.

    @classmethod
    def trace(cls, prepare: Callable[..., object] | None, raw_spec: object) -> "Preparation":
        """Traces a function from a raw record to an example.

        Raises:
            ValueError: It is random, has effects, or returns what is no dense tensor.
        """
        specs = tf.nest.flatten(raw_spec)

        def flat(*tensors: tf.Tensor) -> object:
            raw = tf.nest.pack_sequence_as(raw_spec, tensors)
            if prepare is None:
                return raw
            return prepare(*raw) if type(raw) is tuple else prepare(raw)

        function = tf.function(flat).get_concrete_function(*specs)
        structure = function.structured_outputs
        if _has_list(structure):
            raise ValueError(
                "`prepare` must return a tensor, or a tuple or dict of them. A list may be meant "
                "as one tensor, which `tf.stack` makes of it, or as several: then return a tuple. "
                f"Received: {structure}"
            )
        for output in tf.nest.flatten(structure):
            is_tensor = isinstance(output, (tf.Tensor, tf.TensorSpec))
            if not is_tensor or output.dtype in (tf.variant, tf.resource):
                raise ValueError(
                    "`prepare` must return dense tensors, of numbers or strings; pad ragged and "
                    f"sparse ones, or keep them serialized. Received: {output}"
                )
        _check_repeatable(function.graph)
        specification = tf.nest.map_structure(
            lambda output: tf.TensorSpec(output.shape, output.dtype), structure
        )
        if not tf.nest.flatten(specification):
            raise ValueError(f"`prepare` must return tensors. Received: {structure}")
        calls_python = any(node.op in _PYTHON_CALLS for node in nodes_of(function.graph))
        return cls(specification, function, calls_python)

    def check(self, source: RecordSource) -> None:
        """Prepares the first record twice, if only that can show whether examples are the same.

        Raises:
            ValueError: They differ.
        """
        if not self.calls_python or not len(source):
            return
        raw, errors = source.read(np.zeros(1, np.int64))
        if errors.numpy()[0]:
            return  # Whoever needs the record will hear of it.
        record = [tensor[0] for tensor in raw]
        try:
            one, other = (tf.nest.flatten(self.function(*record)) for _ in range(2))
        except tf.errors.OpError:
            return  # As above.
        for first, second in zip(one, other, strict=True):
            if not np.array_equal(first, second, equal_nan=first.dtype.is_floating):
                raise ValueError(
                    _CHANGING.format("gave two", f"of {source.name(0)}, from one record")
                )

    def fingerprint(self) -> str:
        """Of what the graph says: the operations, and the values that these captured."""
        captured = graph_text.captured_values(self.function)
        return fingerprint_of(graph_text.text_of(self.function), *captured)

    def start(
        self,
        store: int,
        source: RecordSource,
        parallelism: int,
        *,
        skip: bool = False,
        bound: MemoryBound | None = None,
        reads: ReadStatistics | None = None,
    ) -> None:
        """Starts to prepare what a store asks for, until it is closed.

        Args:
            store: Its number.
            source: Of raw records.
            parallelism: Calls at a time.
            skip: Whether examples that cannot be prepared, or are damaged, are left out.
            bound: Ends the filling of the memory; None: there is none to fill.
            reads: Counts what is read, if `source` does not.
        """
        specs = tf.nest.flatten(self.element_spec)
        arguments = {
            "captured": self.function.captured_inputs,
            "f": self.function,
            "parallelism": parallelism,
            "skip": skip,
            "types": [spec.dtype for spec in specs],
            "shapes": [spec.shape for spec in specs],
        }
        for _ in range(_BLOCKS_AT_A_TIME):
            threading.Thread(
                # Of the store the number alone: it is closed when nobody else holds it.
                target=_prepare_all,
                args=(store, source, bound, reads, arguments),
                name="tfdear-prepare",
                daemon=True,
            ).start()


def _prepare_all(
    store: int,
    source: RecordSource,
    bound: MemoryBound | None,
    reads: ReadStatistics | None,
    arguments: Mapping[str, Any],
) -> None:
    operations = library.load()
    in_order = max(_BLOCK, source.records_per_read)
    try:
        with tf.device("CPU"):
            while True:
                examples = operations.dear_next_examples(store, _BLOCK, in_order)
                numbers = examples.numpy()
                if not len(numbers):
                    return
                begin = time.monotonic()
                raw, errors = source.read(numbers)
                example_store.note_read(store, len(numbers), begin)
                if reads is not None:
                    reads.add_source(len(numbers), raw)
                names = [source.name(number) for number in numbers.tolist()]
                operations.dear_prepare_examples(store, examples, names, errors, raw, **arguments)
                if bound is not None:
                    bound.look()
    except Exception as error:
        # Whoever waits for an example says so.
        example_store.end(store, f"DataCache: examples cannot be prepared any more: {error!r}")


def _has_list(structure: object) -> bool:
    if isinstance(structure, Mapping):
        return any(map(_has_list, structure.values()))
    is_list = isinstance(structure, list)
    return is_list or (isinstance(structure, tuple) and any(map(_has_list, structure)))


def nodes_of(graph: tf.Graph) -> list[Any]:
    """The nodes of a graph and of all functions that it calls."""
    definition = graph.as_graph_def()
    return [
        *definition.node,
        *(node for function in definition.library.function for node in function.node_def),
    ]


def _check_repeatable(graph: tf.Graph) -> None:
    for node in nodes_of(graph):
        if "seed2" in node.attr or node.op.startswith(("Rng", "StatefulUniform", "StatefulStand")):
            raise ValueError(_CHANGING.format("draws random numbers", node.op))
        if node.op.startswith(_WRITES):
            raise ValueError(_CHANGING.format("writes a variable or a table", node.op))
        if node.op == "Timestamp":
            raise ValueError(_CHANGING.format("depends on the time", node.op))
