# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Tells in the graph of a step what was computed from this rank's rows, or drawn by this rank.

The graph is walked back from a value, into the functions and branches that it calls, to what a
step was given; not beyond what is the same on all ranks: the results of collectives, and variables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence, Set

import tensorflow as tf

# Operations whose results are the same on all ranks, whatever their inputs.
_SAME_ON_ALL_RANKS = frozenset(
    ("DearReduced", "DearAllGather", "DearBroadcast", "ReadVariableOp", "Const")
)
# Operations that draw by a seed that each rank has for itself (`step_seeds`). Stateless ones draw
# by what they are given.
_DRAWN_BY_RANK = frozenset(
    (
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    )
)
# Operations that call functions, by the attributes with their names, and how many of their inputs
# are no arguments of these.
_CALLS = {
    "PartitionedCall": (("f",), 0),
    "StatefulPartitionedCall": (("f",), 0),
    "If": (("then_branch", "else_branch"), 1),
    "StatelessIf": (("then_branch", "else_branch"), 1),
    "Case": (("branches",), 1),
    "StatelessCase": (("branches",), 1),
}
_LOOPS = {"While": ("cond", "body"), "StatelessWhile": ("cond", "body")}


@dataclasses.dataclass(frozen=True, eq=False)
class _Call:
    """A call of a function: what its graph's arguments are in the graph around it."""

    operation: tf.Operation
    graph: tf.Graph
    first_input: int
    around: _Call | None


def are_in(value: tf.Tensor, own_reads: Set[tf.Operation] = frozenset()) -> bool:
    """Whether a symbolic value depends on what is this rank's own: rows, draws, `own_reads`."""
    waiting: list[tuple[tf.Tensor, _Call | None]] = [(value, None)]
    seen: set[tuple[str, _Call | None]] = set()
    while waiting:
        tensor, call = waiting.pop()
        if (tensor.name, call) in seen:
            continue
        seen.add((tensor.name, call))
        operation = tensor.op
        if operation in own_reads or operation.type in _DRAWN_BY_RANK:
            return True
        if operation.type in _SAME_ON_ALL_RANKS:
            continue
        if not operation.inputs:
            given = None if call is None else _argument(tensor, call)
            if given is None:
                return True
            waiting.append(given)
            continue
        if operation.type == "IdentityN":  # Of results and arguments, where a gradient is custom.
            waiting.append((operation.inputs[tensor.value_index], call))
            continue
        if operation.type in _LOOPS and _draws(operation, own_reads):
            return True
        called = _called_by(operation, call)
        for each in called:
            waiting.append((each.graph.outputs[tensor.value_index], each))
        inputs = operation.inputs[: called[0].first_input] if called else operation.inputs
        waiting.extend((each, call) for each in inputs)
    return False


def draws(graph: tf.Graph, own_reads: Set[tf.Operation] = frozenset()) -> bool:
    """Whether something in a graph, or in what it calls, is drawn at random or one of these."""
    return any(
        each in own_reads or each.type in _DRAWN_BY_RANK or _draws(each, own_reads)
        for each in graph.get_operations()
    )


def _argument(tensor: tf.Tensor, call: _Call) -> tuple[tf.Tensor, _Call | None] | None:
    """What a placeholder in a function is in the graph that calls it; None: it is none."""
    for index, each in enumerate(call.graph.inputs):
        if each.name == tensor.name:
            return call.operation.inputs[call.first_input + index], call.around
    return None


def _graphs(operation: tf.Operation, names: Sequence[str]) -> list[tf.Graph | None]:
    """The graphs of the functions that attributes of an operation name."""
    functions = [operation.get_attr(name) for name in names]
    found = [operation.graph._get_function(each.name) for each in tf.nest.flatten(functions)]
    return [getattr(function, "graph", None) for function in found]


def _draws(operation: tf.Operation, own_reads: Set[tf.Operation]) -> bool:
    names = _LOOPS.get(operation.type) or _CALLS.get(operation.type, ((), 0))[0]
    graphs = _graphs(operation, names)
    return any(graph is not None and draws(graph, own_reads) for graph in graphs)


def _called_by(operation: tf.Operation, around: _Call | None) -> list[_Call]:
    names, first_input = _CALLS.get(operation.type, ((), 0))
    calls = []
    for graph in _graphs(operation, names):
        arguments = len(operation.inputs) - first_input
        if graph is None or len(graph.inputs) != arguments:
            return []
        if len(graph.outputs) != len(operation.outputs):
            return []
        calls.append(_Call(operation, graph, first_input, around))
    return calls
