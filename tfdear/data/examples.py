# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How many examples a rank really has in a step.

[Note: Which arguments hold the examples]
The arguments of a step may be anything: the batch, but also class weights, masks, a hidden state.
What the strategy's datasets yield is told from the rest by its types and trailing shapes, which
`Elements` keeps: these survive where a mark on a tensor would be lost, as in the arguments of a
`tf.function`. Where no argument looks like an element of a dataset, the arguments' leading
dimensions have to agree; if they do not, the most frequent one counts, and a warning says so.
"""

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from tfdear.data import call_time, first_batch, step_data

# A value of a batch or its specification, and what all batches of a dataset share of it: the
# class, the type and the trailing shape.
_Component: TypeAlias = tf.Tensor | tf.RaggedTensor | tf.SparseTensor | tf.TypeSpec
_Kind: TypeAlias = tuple[str, tf.DType, tuple[int | None, ...]]

_DIFFERENT = (
    "tfdear: the arguments of a step have different leading dimensions, so the number of this "
    "rank's examples is not certain. It weighs what the rank contributes. Hand the batch to "
    "`strategy.run` as the distributed dataset yields it, and let the function capture what is no "
    "batch."
)


class Reducer(Protocol):
    """What sums tensors over the ranks: a `tfdear.gradients.reducer.Reducer`."""

    def all_reduce(
        self,
        values: Sequence[tf.Tensor | tf.IndexedSlices],
        *,
        name: str,
        weight: tf.Tensor | None = None,
    ) -> list[tf.Tensor | tf.IndexedSlices]:
        """The sums, in the order of `values`."""


class Elements:
    """The kinds of elements that a strategy's distributed datasets yield."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[_Kind, ...], first_batch.Seen | None] = {}

    def add(self, specification: object, seen: first_batch.Seen | None = None) -> None:
        """Remembers a dataset by its `element_spec`, and what is seen of its batches."""
        kind = tuple(_kind(spec) for spec in _batched(specification))
        if kind:
            self._kinds[kind] = seen

    @property
    def are_uneven(self) -> bool:
        """Whether ranks hold different shares of the parts of some dataset's batches."""
        return any(seen is not None and seen.is_uneven for seen in self._kinds.values())

    def rows(self, values: Sequence[object]) -> dict[int, np.ndarray]:
        """Arrays of one row of a dataset, by the index of the step's value that they look like."""
        indices = [index for index, value in enumerate(values) if _batched(value)]
        kinds = [_kind(values[index]) for index in indices]
        for known in sorted(self._kinds, key=len, reverse=True):
            seen = self._kinds[known]
            row = seen.row if seen is not None else ()
            if len(row) != len(known):
                continue
            for start in range(len(kinds) - len(known) + 1):
                end = start + len(known)
                if _fits(kinds[start:end], known):
                    return dict(zip(indices[start:end], row, strict=True))
        return {}

    def matches(self, values: list[_Component]) -> list[list[_Component]]:
        """The longest runs of a step's batched arguments that look like an element."""
        kinds = [_kind(value) for value in values]
        for length in sorted({len(kind) for kind in self._kinds}, reverse=True):
            ends = range(length, len(values) + 1)
            found = [
                values[end - length : end]
                for end in ends
                if any(_fits(kinds[end - length : end], kind) for kind in self._kinds)
            ]
            if found:
                return found
        return []


class Examples:
    """The examples of this rank in one step, and what follows from their number.

    `count` is a scalar int64, or None: it is not known, and all ranks weigh the same.
    """

    def __init__(self, count: tf.Tensor | None, reducer: Reducer):
        self._count = count
        self._reducer = reducer
        self._graph = step_data.current_graph()
        self._shares: dict[int, tf.Tensor] = {}

    @property
    def count(self) -> tf.Tensor | None:
        """Scalar int64: this rank's number of examples, or None if it is not known here."""
        graph = step_data.current_graph()
        if self._count is None or (graph is None and self._graph is not None):
            return None  # Eager ops cannot use a number that is part of a graph.
        function = call_time.function_of(graph)
        if function is None or function is call_time.function_of(self._graph):
            return self._count
        scalar = tf.TensorSpec((), tf.int64)
        return call_time.value(function, "tfdear_number_of_examples", scalar, _count_at_call)

    @property
    def present(self) -> tf.Tensor | None:
        """Scalar bool: whether this rank has any, or None if that is not known here."""
        return None if self.count is None else self.count > 0

    def share(self) -> tf.Tensor | None:
        """This rank's share of all ranks' examples, scalar float64, or None if not known here.

        All ranks must call it at the same point: the first call adds up their numbers.
        """
        count = self.count
        if count is None:
            return None
        graph = step_data.current_graph()
        while True:
            if id(graph) in self._shares:
                return self._shares[id(graph)]
            if graph is None or graph is self._graph or call_time.is_function(graph):
                break
            graph = getattr(graph, "outer_graph", None)
        share = self._share_of(count)
        self._shares[id(step_data.current_graph())] = share
        return share

    def share_of_part(self, rows: tf.Tensor | int) -> tf.Tensor | None:
        """As `share`, of a part of the batch of which this rank may have another number of rows.

        All ranks must call it at the same point, each time.
        """
        if self.present is None:
            return None
        return self._share_of(tf.where(self.present, tf.cast(rows, tf.int64), 0))

    def _share_of(self, count: tf.Tensor) -> tf.Tensor:
        (total,) = self._reducer.all_reduce([count], name="number of examples")
        return tf.math.divide_no_nan(tf.cast(count, tf.float64), tf.cast(total, tf.float64))

    def gate(
        self, value: tf.Tensor | tf.IndexedSlices, otherwise: tf.Tensor | None = None
    ) -> tf.Tensor | tf.IndexedSlices:
        """The value; on a rank without examples, where it means nothing, `otherwise` or zeros."""
        if self.present is None:
            return value
        if isinstance(value, tf.IndexedSlices):  # Without rows: those of zeros are touched, too.
            rows = tf.where(self.present, tf.shape(value.values)[0], 0)
            return tf.IndexedSlices(value.values[:rows], value.indices[:rows], value.dense_shape)
        return tf.where(
            self.present, value, tf.zeros_like(value) if otherwise is None else otherwise
        )

    @contextlib.contextmanager
    def ignored(self) -> Iterator[None]:
        """Within it, the number is not known: this rank contributes even if it has no examples."""
        count, self._count = self._count, None
        try:
            yield
        finally:
            self._count = count


def current() -> Examples | None:
    """The examples of the step that this thread builds or runs, or None outside of a step."""
    return getattr(tf.distribute.get_replica_context(), "examples", None)


def for_backward_pass(gradient: Callable[..., Any]) -> Callable[..., Any]:
    """A gradient's function, with what it needs of the step. Call it in the forward pass.

    See [Note: Values at the call], `call_time.py`.
    """
    function = call_time.function_of(step_data.current_graph())
    examples = current()
    if function is not None and examples is not None:
        # The function is given now what its gradients will ask for.
        _ = examples.count
        step_data.required()

    def in_backward_pass(*upstream: Any) -> Any:
        with call_time.backward_pass_of(function):
            return gradient(*upstream)

    return in_backward_pass


def _count_at_call() -> tf.Tensor:
    """The number of the step that calls a function; one, as all ranks then say, if none is known.

    See [Note: Values at the call], `call_time.py`.
    """
    examples = current()
    count = None if examples is None else examples.count
    return tf.constant(1, tf.int64) if count is None else count


def count(arguments: object, elements: Elements) -> tf.Tensor | None:
    """The number of examples in a step's arguments, scalar int64; None if no argument has rows.

    See [Note: Which arguments hold the examples].
    """
    values = _batched(arguments)
    matches = elements.matches(values)
    if len(matches) == 1:
        return number_of_rows(matches[0][0])
    values = [value for match in matches for value in match] or values
    known = [tf.TensorShape(value.shape)[0] for value in values]
    if None not in known:
        if len(set(known)) > 1:
            logging.log_first_n(logging.WARNING, "%s Received: %s", 1, _DIFFERENT, known)
        # The first one of those that are equally frequent.
        frequent = collections.Counter(known).most_common(1)
        return tf.constant(frequent[0][0], tf.int64) if frequent else None
    # A value of fixed size beside others of unknown size is no batch.
    rows = [
        number_of_rows(value) for value, fixed in zip(values, known, strict=True) if fixed is None
    ]
    if len(rows) == 1:
        return rows[0]
    rows = tf.stack(rows)
    return tf.cond(
        tf.reduce_all(tf.equal(rows, rows[0])),
        lambda: rows[0],
        lambda: tf.raw_ops.Print(
            input=rows[0], data=[rows], message=f"{_DIFFERENT} Received: ", first_n=1, summarize=-1
        ),
    )


def _batched(structure: object) -> list[_Component]:
    """The values or specifications of a structure that have a first dimension."""

    def is_batched(value: object) -> bool:
        shape = getattr(value, "shape", None)
        if shape is None or isinstance(value, (tf.Variable, keras.Variable)):
            return False
        return bool(tf.TensorShape(shape).rank)

    return [value for value in tf.nest.flatten(structure) if is_batched(value)]


def _kind(value: _Component) -> _Kind:
    kinds = {tf.RaggedTensor: "ragged", tf.RaggedTensorSpec: "ragged"}
    kinds |= {tf.SparseTensor: "sparse", tf.SparseTensorSpec: "sparse"}
    kind = next((name for type_, name in kinds.items() if isinstance(value, type_)), "dense")
    return kind, tf.as_dtype(value.dtype), tuple(tf.TensorShape(value.shape)[1:])


def _fits(kinds: Sequence[_Kind], known: Sequence[_Kind]) -> bool:
    return len(kinds) == len(known) and all(
        one[:2] == other[:2] and tf.TensorShape(one[2]).is_compatible_with(tf.TensorShape(other[2]))
        for one, other in zip(kinds, known, strict=True)
    )


def number_of_rows(value: _Component) -> tf.Tensor:
    """Scalar int64; a constant where it is known when the graph is made."""
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int64)
    if isinstance(value, tf.SparseTensor):
        return value.dense_shape[0]
    known = tf.TensorShape(value.shape)[0]
    return tf.shape(value, tf.int64)[0] if known is None else tf.constant(known, tf.int64)
