# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Prepared examples as raw records, for a disk that holds those."""

import re
from typing import Any

import numpy as np
import tensorflow as tf

from tfdear.data.preparation import Preparation, nodes_of
from tfdear.data.record_source import RecordSource, fingerprint_of

# Operations that read files, or data sets that may.
_READS_FILES = re.compile(
    "ReadFile|MatchingFiles|WholeFileReader|.*RecordReader|TextLineReader|LMDBReader|.*Dataset(V[0-9])?$"
    "|IteratorGetNext|MakeIterator"
)


class PreparedRecords:
    """The examples of a source, each tensor serialized.

    Args:
        source: Of raw records.
        preparation: What makes examples of them.
        threads: Calls of it at a time.
        version: Text that tells apart what the graph does not.

    Raises:
        ValueError: There is no version, and the graph does not say all that examples depend on.
    """

    def __init__(self, source: RecordSource, preparation: Preparation, threads: int, version: str):
        if not version and (preparation.calls_python or _reads_more(preparation.function)):
            raise ValueError(
                '`disk_holds="prepared"` cannot tell whether what `prepare` calls in Python, reads '
                "from a file or a variable, or looks up in a table, is what it was when the "
                "examples were written. Give the cache a `version`, and another one when that "
                'changes, or take `disk_holds="raw"`.'
            )
        self._source = source
        self._preparation = preparation
        specs = tf.nest.flatten(source.element_spec)
        count = len(tf.nest.flatten(preparation.element_spec))

        def serialized(*raw: tf.Tensor) -> list[tf.Tensor]:
            example = tf.nest.flatten(preparation.function(*raw))
            return [tf.io.serialize_tensor(tensor) for tensor in example]

        def all_of(*raw: tf.Tensor) -> list[tf.Tensor]:
            return tf.map_fn(
                lambda record: serialized(*record),
                raw,
                parallel_iterations=threads,
                fn_output_signature=[tf.string] * count,
            )

        self._one = tf.function(serialized).get_concrete_function(*specs)
        self._all = tf.function(all_of).get_concrete_function(
            *(tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in specs)
        )
        self._count = count

    def __len__(self) -> int:
        return len(self._source)

    @property
    def element_spec(self) -> object:
        """A scalar string for each tensor of an example."""
        return (tf.TensorSpec([], tf.string),) * self._count

    def parse(self, *texts: tf.Tensor) -> object:
        """The example that was serialized."""
        specs = tf.nest.flatten(self._preparation.element_spec)
        tensors = [
            tf.ensure_shape(tf.io.parse_tensor(text, spec.dtype), spec.shape)
            for text, spec in zip(texts, specs, strict=True)
        ]
        return tf.nest.pack_sequence_as(self._preparation.element_spec, tensors)

    def read(self, numbers: np.ndarray) -> tuple[list[tf.Tensor], tf.Tensor]:
        """As `RecordSource.read`."""
        raw, failed = self._source.read(numbers)
        errors = failed.numpy().astype(object)
        good = np.flatnonzero(errors == b"")
        records = [tf.gather(tensor, good) for tensor in raw]
        try:
            examples = self._all(*records)
        except tf.errors.OpError:
            # One of them at least; the others are as good as ever.
            rows = []
            for place, *record in zip(good.tolist(), *records, strict=True):
                try:
                    rows.append(self._one(*record))
                except tf.errors.OpError as error:
                    # What comes before is where in Python the node was made.
                    why = error.message.strip().split("\n\n")[-1]
                    errors[place] = f"INVALID_ARGUMENT: {why}".encode()
            good = np.flatnonzero(errors == b"")
            nothing = [tf.zeros([0], tf.string)] * self._count
            columns = zip(*rows, strict=True)
            examples = [tf.stack(column) for column in columns] if rows else nothing
        places = good[:, np.newaxis]
        texts = [tf.scatter_nd(places, example, [len(numbers)]) for example in examples]
        return texts, tf.constant(errors, tf.string)

    @property
    def records_per_read(self) -> int:
        """As of the source."""
        return self._source.records_per_read

    def fingerprint(self) -> str:
        """As `RecordSource.fingerprint`: also of the function, and of what it captured."""
        return fingerprint_of(self._source.fingerprint(), self._preparation.fingerprint())

    def modification_times(self) -> np.ndarray:
        """Those of the source."""
        return self._source.modification_times()

    def name(self, number: int) -> str:
        """What the source calls a record."""
        return self._source.name(number)


def _reads_more(function: Any) -> bool:
    """Whether a function reads what may change: a variable or table that it captures, or a file."""
    captures = any(t.dtype in (tf.resource, tf.variant) for t in function.captured_inputs)
    return captures or any(_READS_FILES.match(node.op) for node in nodes_of(function.graph))
