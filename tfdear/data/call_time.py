# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Values that a function gets where it is called, though its code does not pass them.

[Note: Values at the call]
A `tf.function` that a step calls is traced once for many steps. A tensor of the step that it
captures would be that of the step for which it was traced: a constant, if that one ran eagerly, and
of no use in another graph. So what belongs to a step is asked for at each call, in the graph of
the caller, which may be such a function itself.

TensorFlow makes another function of its gradients, which it calls with tensors of the first alone.
What belongs to the step has to be among these.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private

# The function for which TensorFlow makes one of its gradients.
_forward: contextvars.ContextVar[tf.Graph | None] = contextvars.ContextVar("forward", default=None)


def function_of(graph: tf.Graph | None) -> tf.Graph | None:
    """The function that a graph is of, also as a branch or a loop's body; None: of none."""
    while graph is not None and not is_function(graph):
        graph = getattr(graph, "outer_graph", None)
    return graph


def is_function(graph: tf.Graph | None) -> bool:
    """Whether a graph is a whole function's: not a branch, nor the body of a loop."""
    return type(graph) is _tf_private.func_graph.FuncGraph


def is_branch(graph: tf.Graph | None, within: tf.Graph | None) -> bool:
    """Whether a graph is another one or a branch in it: what is there runs once, or not at all."""
    while graph is not within:
        if not isinstance(graph, _tf_private.control_flow_v2_func_graphs.CondBranchFuncGraph):
            return False
        graph = graph.outer_graph
    return True


def value(
    function: tf.Graph, key: str, specification: tf.TensorSpec, at_call: Callable[[], tf.Tensor]
) -> tf.Tensor:
    """What `at_call` returns wherever a function is called; of one key, in one function, once.

    Raises:
        NotImplementedError: The function is one of gradients; the forward pass had no use of it.
    """
    if function.name.startswith(_tf_private.GRADIENTS_PREFIX.get()):
        # Of the gradients that are not taken by a tape, it is the graph around.
        for forward in (_forward.get(), function.outer_graph):
            if forward is None or not is_function(forward):
                continue
            if key in forward.function_captures.by_ref_internal:
                return forward.function_captures.by_ref_internal[key]
        raise NotImplementedError(
            "A collective of tfdear, or a lookup in a sharded table, in the gradients of a "
            "`tf.function` which does without in its forward pass, as with `tf.recompute_grad` or "
            "a gradient function of one's own. Take the gradients within the `tf.function`, or "
            "call it without `tf.function`."
        )
    captures = function.function_captures
    if key not in captures.by_ref_internal:
        with function.as_default(), tf.control_dependencies(None):
            placeholder = tf.compat.v1.placeholder(specification.dtype, specification.shape)
        # As `capture_call_time_value`, which leaves it to the outermost function alone to ask.
        captures.add_or_replace(
            key=key,
            external=at_call,
            internal=placeholder,
            tracetype=specification,
            is_by_ref=True,
        )
    return captures.by_ref_internal[key]


@contextlib.contextmanager
def backward_pass_of(function: tf.Graph | None) -> Iterator[None]:
    """Within it, gradients of a function get the values that it was given."""
    token = _forward.set(function)
    try:
        yield
    finally:
        _forward.reset(token)
