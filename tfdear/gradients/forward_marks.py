# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Marks in a traced step that tell when the forward pass comes to a variable.

[Note: When a layer begins] TensorFlow reads variables as soon as a step begins, so a read says
nothing about the layer that wanted it. But a layer asks for its variable when its input has been
traced: the op that was made last before that is what the layer's computation follows. A mark hangs
on that op, and nothing hangs on the mark. Where the op is another one, such as one that prepares a
second input, the mark is early; later marks make up for it, since the forward pass goes one way.
"""

import weakref

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import step_data
from tfdear.engine import library

# They only fetch something, long before the layer that uses it.
_FETCHING = frozenset(
    ("Const", "DearAwait", "DearForwardMark", "NoOp", "Placeholder", "ReadVariableOp")
)
_PASSING_ON = frozenset(("Cast", "Identity"))
_MOST_LOOKED_AT = 200

# The variables that have a mark, by graph.
_marked: weakref.WeakKeyDictionary[tf.Graph, set[int]] = weakref.WeakKeyDictionary()


def mark(variable: int) -> None:
    """Marks the place of a variable's first use in the graph of a step; else does nothing.

    Args:
        variable: The engine's number of it.
    """
    if tf.executing_eagerly() or not getattr(
        tf.distribute.get_replica_context(), "reconciles", False
    ):
        return
    graph = _tf_private.ops.get_default_graph()
    marked = _marked.setdefault(graph, set())
    if variable in marked:
        return
    marked.add(variable)
    before = next(filter(_computes, graph.get_operations()[: -_MOST_LOOKED_AT - 1 : -1]), None)
    if before is not None:
        with step_data.required(), tf.control_dependencies([before]):
            library.load().dear_forward_mark(variable=variable)


def _computes(op: tf.Operation) -> bool:
    if op.type in _FETCHING:
        return False
    return not (op.type in _PASSING_ON and op.inputs[0].op.type in _FETCHING)
