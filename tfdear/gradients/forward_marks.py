# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Marks in a traced step that tell when the forward pass reaches a variable.

[Note: When a layer starts] TensorFlow reads variables as soon as a step starts, so a read says
nothing about the layer that needs it. But a layer asks for its variable when its input has been
traced: the op that was added last before is the one that the layer's computation follows. A mark
depends on that op, and nothing depends on the mark. Where that op is another one, such as one that
prepares a second input, the mark is early; later marks correct this, since the forward pass goes
one way.
"""

import weakref

import tensorflow as tf

from tfdear.data import step_data
from tfdear.engine import library

# These only fetch a value, long before the layer that uses it.
_FETCHING = frozenset(
    (
        *("Const", "DearAwait", "DearForwardMark", "NoOp", "Placeholder", "ReadVariableOp"),
        *("DearReduced", "DearReducedRows"),  # A step does not wait for sums that it puts off.
    )
)
_PASS_THROUGH = frozenset(("Cast", "Identity"))
_MAX_SCANNED = 200

# The variables that have a mark, by graph.
_marked: weakref.WeakKeyDictionary[tf.Graph, set[int]] = weakref.WeakKeyDictionary()


def mark(variable: int) -> None:
    """Marks the first use of a variable, by the engine's number of it, in the graph of a step.

    Outside of a step it does nothing.
    """
    graph = step_data.current_graph()
    if graph is None or not getattr(tf.distribute.get_replica_context(), "reconciles", False):
        return
    marked = _marked.setdefault(graph, set())
    if variable in marked:
        return
    marked.add(variable)
    predecessor = next(filter(_computes, graph.get_operations()[: -_MAX_SCANNED - 1 : -1]), None)
    if predecessor is not None:
        with step_data.required(), tf.control_dependencies([predecessor]):
            library.load().dear_forward_mark(variable=variable)


def _computes(op: tf.Operation) -> bool:
    if op.type in _FETCHING:
        return False
    return not (op.type in _PASS_THROUGH and op.inputs[0].op.type in _FETCHING)
