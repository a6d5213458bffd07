# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Lookups of a graph that travel together: all tables whose ids are there before any vector is.

[Note: Groups of lookups]
A group's ids are gathered when all of its tables have theirs, and so are its vectors. So nothing
that a table's ids depend on may depend on the group: neither its vectors, nor an update that comes
after them, nor anything with an effect whose order TensorFlow keeps. What might is in a group of
its own.

[Note: Early vectors and writes]
A lookup gives its ids as soon as it has them, and says with them whether the vectors that were
looked up early still hold: whether the table is as it was then. That may be before a write of the
same graph which the lookup comes after. So the vectors of such a lookup never come early.
"""

import dataclasses
import functools
import weakref
from collections.abc import Sequence

import tensorflow as tf

from tfdear.data import call_time, step_data
from tfdear.engine import engine as engine_module
from tfdear.engine import library
from tfdear.gradients import graph_notes, next_ids, order
from tfdear.gradients.placement import Placement

# What brings data into a graph: it depends on nothing in it.
_SOURCES = frozenset(("Placeholder", "IteratorGetNext", "_Arg"))
_MOST_ANCESTORS = 500
# Notes of a graph: the group that still takes tables, and the lookups by the tensors of their ids.
_GROUPS, _OPEN, _LOOKUPS = "lookup_groups", "open", "lookups"


class LookupGroup:
    """The lookups of one ticket; a resource keeps tickets in program order.

    `follows_write`: whether its graph may write a table before them.
    """

    def __init__(
        self, engine: engine_module.Engine, order_resource: tf.Tensor, follows_write: bool = False
    ):
        self._engine = engine
        self._order = order_resource
        self._follows_write = follows_write
        self._lookup = engine.create_lookup()
        self._early: set[int] = set()
        # What the next batch has in place of each table's ids, and how many rows the table has.
        self._next: list[tuple[next_ids.NextIds | None, int]] = []

    @functools.cached_property
    def ticket(self) -> tf.Tensor:
        """Its place in the order of lookups: of an eager one, once it has its table."""
        with step_data.required(), step_data.read():
            return library.load().dear_open_lookup(self._order, lookup=self._lookup)

    def add(
        self, placement: Placement, variable: int, name: str, following: next_ids.NextIds | None
    ) -> int:
        """Adds a table, of this number; returns its place in the group."""
        self._engine.add_lookup_table(
            self._lookup, placement.column_begins, placement.partition.columns, variable, name
        )
        self._next.append((following, placement.partition.rows))
        return len(self._next) - 1

    @property
    def looks_ahead(self) -> bool:
        """Whether the ids of the next step are known, of all tables."""
        return all(following is not None for following, _ in self._next)

    @functools.cached_property
    def ahead(self) -> tf.Tensor:
        """The ticket for what the next step looks up, once all of this step's lookups have theirs.

        [Note: looking ahead], `custom_ops/engine/schedule/table_lookup.h`.
        """
        ops = library.load()
        self._engine.look_ahead(self._lookup)
        with step_data.required(), step_data.read():
            ahead = ops.dear_open_look_ahead(self._order, self.ticket)
        for index, (following, rows) in enumerate(self._next):
            assert following is not None  # It looks ahead.
            order.run_when_ready(
                ops.dear_contribute_next_ids(
                    ahead, following.ids, following.present, index=index, rows=rows
                )
            )
        return ahead

    def begin_early(self, index: int) -> bool:
        """Whether a table's vectors are to be looked up early now; once at the most.

        A table may be updated several times by gradients of one lookup.
        """
        if self._follows_write or index in self._early:
            return False  # [Note: Early vectors and writes]
        self._early.add(index)
        self._engine.look_up_early(self._lookup, index)
        return True

    def may_pool(self, index: int, dtype: tf.DType) -> None:
        """Says that the holders of a table's columns may pool its vectors; once."""
        self._engine.may_pool(self._lookup, index, dtype.size)


@dataclasses.dataclass(frozen=True, eq=False)
class Lookup:
    """A lookup whose ids all ranks know."""

    group: LookupGroup
    index: int
    unique: tf.Tensor  # This rank's ids, each of them once, in the order in which it gave them.
    positions: tf.Tensor  # Of every id of the batch among the different ones.
    dtype: tf.DType  # In which vectors travel.
    may_be_pooled: bool = False  # By the holders of the table's columns.

    @property
    def ticket(self) -> tf.Tensor:
        return self.group.ticket


class LookupGroups:
    """The groups of all graphs of one strategy."""

    def __init__(self, engine: engine_module.Engine):
        self._engine = engine
        # Graphs that have a group which still takes tables.
        self._open: weakref.WeakSet[tf.Graph] = weakref.WeakSet()
        # Graphs that may have written a table before what they look up from now on.
        self._writing: weakref.WeakSet[tf.Graph] = weakref.WeakSet()

    def group_for(
        self, ids: tf.Tensor, order_resource: tf.Tensor, beside: Sequence[tf.Tensor] = ()
    ) -> LookupGroup:
        """The group that takes a lookup of these ids, and of what goes with them."""
        graph = step_data.current_graph()
        if graph is None:
            return LookupGroup(self._engine, order_resource)
        groups = graph_notes.of(graph, _GROUPS)
        if graph not in self._open or not _come_from_data([ids, *beside]):
            self._open.add(graph)
            groups[_OPEN] = LookupGroup(
                self._engine, order_resource, follows_write=graph in self._writing
            )
        return groups[_OPEN]

    def remember(self, ids: tf.Tensor, lookup: Lookup) -> None:
        """Notes that the ids of a batch were looked up."""
        if (graph := step_data.current_graph()) is not None:
            graph_notes.of(graph, _LOOKUPS)[ids.name] = lookup

    def lookup_of(self, indices: tf.Tensor) -> Lookup | None:
        """The lookup of ids that are the indices of a gradient; None: there is not just one."""
        graph = step_data.current_graph()
        known = {} if graph is None else graph_notes.of(graph, _LOOKUPS)
        while known and indices.graph is graph:
            if indices.name in known:
                return known[indices.name]
            if indices.op.type not in ("Cast", "Identity"):
                break
            indices = indices.op.inputs[0]
        return None

    def close(self) -> None:
        """Ends the open groups: what is looked up later may see a write to a table.

        Also those of the graphs around, whose later lookups follow the call of this one, and those
        of whatever calls it later: see [Note: Values at the call], `call_time.py`.
        """
        self._open.clear()
        graph = step_data.current_graph()
        function = call_time.function_of(graph)
        while graph is not None:
            self._writing.add(graph)
            graph = getattr(graph, "outer_graph", None)
        if function is not None:
            call_time.value(
                function, "tfdear_writes_tables", tf.TensorSpec((), tf.bool), self._close_at_call
            )

    def _close_at_call(self) -> tf.Tensor:
        self.close()
        return tf.constant(True)


def _come_from_data(tensors: Sequence[tf.Tensor]) -> bool:
    """Whether tensors are computed from a graph's inputs alone, without effects."""
    seen: set[int] = set()
    waiting = [tensor.op for tensor in tensors]
    while waiting:
        op = waiting.pop()
        if id(op) in seen or op.type in _SOURCES:
            continue
        if op.op_def.is_stateful or op.type.startswith("Dear") or len(seen) >= _MOST_ANCESTORS:
            return False
        seen.add(id(op))
        waiting += [value.op for value in op.inputs] + list(op.control_inputs)
    return True
