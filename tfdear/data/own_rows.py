# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Tells in the graph of a step what was computed from this rank's rows, or drawn by this rank.

The graph is walked back from a value, into the functions and branches that it calls, to what a
step was given; not beyond what is the same on all ranks: the results of collectives, and variables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Set

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
}


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
        called = _called_by(operation, call)
        for each in called:
            waiting.append((each.graph.outputs[tensor.value_index], each))
        inputs = operation.inputs[: called[0].first_input] if called else operation.inputs
        waiting.extend((each, call) for each in inputs)
    return False


def _argument(tensor: tf.Tensor, call: _Call) -> tuple[tf.Tensor, _Call | None] | None:
    """What a placeholder in a function is in the graph that calls it; None: it is none."""
    for index, each in enumerate(call.graph.inputs):
        if each.name == tensor.name:
            return call.operation.inputs[call.first_input + index], call.around
    return None


def _called_by(operation: tf.Operation, around: _Call | None) -> list[_Call]:
    names, first_input = _CALLS.get(operation.type, ((), 0))
    calls = []
    for name in names:
        function = operation.graph._get_function(operation.get_attr(name).name)
        graph = getattr(function, "graph", None)
        arguments = len(operation.inputs) - first_input
        if graph is None or len(graph.inputs) != arguments:
            return []
        if len(graph.outputs) != len(operation.outputs):
            return []
        calls.append(_Call(operation, graph, first_input, around))
    return calls
