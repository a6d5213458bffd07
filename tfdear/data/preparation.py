# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""From raw records to examples: the traced function, and the thread that calls it."""

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdear.data.record_source import RecordSource
from tfdear.engine import example_store, library

# Records that are read and prepared in one call.
_BLOCK = 64
# One reads while another prepares.
_BLOCKS_AT_A_TIME = 2

_CHANGING = (
    "`prepare` must give the same example each time, since each is prepared once and kept; it {} "
    "({}). Do what is random behind the cache: `cache.batches(...).map(augment)`."
)
# Reading state that steps do not change is no effect.
_READING = frozenset(("ReadVariableOp", "LookupTableFindV2", "LookupTableSizeV2", "VarHandleOp"))


@dataclasses.dataclass(frozen=True, eq=False)
class Preparation:
    """A traced `prepare`: what it returns, and a function of flat tensors."""

    element_spec: object
    function: Any  # A concrete function.

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
        for output in tf.nest.flatten(structure):
            if not isinstance(output, (tf.Tensor, tf.TensorSpec)):
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
        return cls(specification, function)

    def start(self, store: int, source: RecordSource, parallelism: int) -> None:
        """Starts to prepare what the store of this number asks for, until it is closed."""
        specs = tf.nest.flatten(self.element_spec)
        arguments = {
            "captured": self.function.captured_inputs,
            "f": self.function,
            "parallelism": parallelism,
            "types": [spec.dtype for spec in specs],
            "shapes": [spec.shape for spec in specs],
        }
        for _ in range(_BLOCKS_AT_A_TIME):
            threading.Thread(
                # Of the store the number alone: it is closed when nobody else holds it.
                target=_prepare_all,
                args=(store, source, arguments),
                name="tfdear-prepare",
                daemon=True,
            ).start()


def _prepare_all(store: int, source: RecordSource, arguments: Mapping[str, Any]) -> None:
    operations = library.load()
    in_order = max(_BLOCK, source.records_per_read)
    try:
        with tf.device("CPU"):
            while True:
                examples = operations.dear_next_examples(store, _BLOCK, in_order)
                numbers = examples.numpy()
                if not len(numbers):
                    return
                raw, errors = source.read(numbers)
                names = [source.name(number) for number in numbers.tolist()]
                operations.dear_prepare_examples(store, examples, names, errors, raw, **arguments)
    except Exception as error:
        # Whoever waits for an example says so.
        example_store.end(store, f"DataCache: examples cannot be prepared any more: {error!r}")


def _check_repeatable(graph: tf.Graph) -> None:
    functions = list(graph.as_graph_def().library.function)
    nodes = [*graph.as_graph_def().node, *(node for f in functions for node in f.node_def)]
    for node in nodes:
        if "seed2" in node.attr or node.op.startswith(("Rng", "StatefulUniform", "StatefulStand")):
            raise ValueError(_CHANGING.format("draws random numbers", node.op))
        if node.op.startswith("Assign"):
            raise ValueError(_CHANGING.format("writes a variable", node.op))
