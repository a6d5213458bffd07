# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Iterators that a function reads in the order of the program.

TensorFlow lets a graph read several iterators at once. Where reading involves the other ranks, all
of them must come by in the same order.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import step_data

_LAST_READ = "_tfdear_last_read"


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Within it, an iterator is read after those that the graph has read in this context."""
    graph = step_data.current_graph()
    if graph is None:
        yield
        return
    before = getattr(graph, _LAST_READ, None)
    count = len(graph.get_operations())
    with tf.control_dependencies([] if before is None else [before]):
        yield
    for op in graph.get_operations()[count:]:
        if op.type.startswith("IteratorGetNext"):
            setattr(graph, _LAST_READ, op)


class _IteratorInGraph(_tf_private.iterator_ops.OwnedIterator):
    """An iterator that a `tf.function` was given."""

    def _next_internal(self) -> object:
        with kept():
            return super()._next_internal()

    def get_next_as_optional(self) -> tf.experimental.Optional:
        with kept():
            return super().get_next_as_optional()


class InOrderSpec(tf.data.IteratorSpec):
    """What a `tf.function` knows of an iterator that it reads in order."""

    __slots__ = ()

    def _from_components(self, components: Any) -> _IteratorInGraph:
        return _IteratorInGraph(components=components, element_spec=self._element_spec)

    @staticmethod
    def from_value(value: Any) -> "InOrderSpec":
        return InOrderSpec(value.element_spec)
