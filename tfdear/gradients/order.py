# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The order of a step's collectives, and of the backward pass between them.

[Note: Gradients first]
When the gradient of a layer's output is there, two things can be computed from it: the gradients of
the layer's weights, which nothing in the step waits for, and the gradient of its input, which the
rest of the backward pass waits for. TensorFlow's executor takes ready operations in any order, with
few threads the newest first. It then runs down the whole backward pass and computes the gradients
of the weights last, when it is too late to hide their communication. A control edge from the
contribution of the one to the computation of the other changes the order and nothing else.

A contribution waits for its reduction to be opened, which waits for every operation with an effect
that precedes it in the program, such as a collective of the backward pass itself (synchronized
batch normalization). TensorFlow adds those edges when the function is complete. So what such an
operation waits for must not wait for a contribution, or there would be a deadlock.

[Note: Functions of gradients]
Collectives have the same order on all ranks because TensorFlow keeps operations with effects in
program order, and runs them whether or not their results are used. It does neither in the function
that it makes of another one's gradients for a gradient tape.
"""

import contextlib
from collections.abc import Iterable

import tensorflow as tf

from tfdear.data import step_data

# Operations that take a place in the order of collectives.
_OPENING = frozenset({"DearOpenCollective", "DearOpenReduction"})

# Operations that compute the gradient of a layer's weights from that of its output.
_WEIGHT_GRADIENTS = frozenset(
    {
        "BatchMatMulV2",
        "BiasAddGrad",
        "Conv2DBackpropFilter",
        "Conv3DBackpropFilterV2",
        "DepthwiseConv2dNativeBackpropFilter",
        "Einsum",
        "MatMul",
    }
)
# Operations between them and the reduction that do not change which layer they belong to.
_PASS_THROUGH = frozenset({"Cast", "Identity", "Reshape", "Transpose"})
_MAX_PASSED = 8


def in_program_order() -> contextlib.AbstractContextManager[None]:
    """Within it, a collective comes after those that its graph has; see the second note."""
    graph = step_data.current_graph()
    if graph is None or _has_manager(graph):
        return contextlib.nullcontext()
    opened = (op for op in reversed(graph.get_operations()) if op.type in _OPENING)
    return tf.control_dependencies([op] if (op := next(opened, None)) is not None else [])


def after(contributions: Iterable[tf.Operation]) -> contextlib.AbstractContextManager[None]:
    """Within it, sums come after contributions, which else might not run; see the second note."""
    contributions = [op for op in contributions if op is not None]
    if not contributions or _has_manager(contributions[0].graph):
        return contextlib.nullcontext()
    return tf.control_dependencies(contributions)


def _has_manager(graph: tf.Graph) -> bool:
    """Whether TensorFlow runs all operations with effects of a graph, in program order."""
    return getattr(graph, "experimental_acd_manager", None) is not None


def contribute_gradients_first(contributions: Iterable[tf.Operation]) -> int:
    """Adds control edges from contributions to the other operations that use the same tensors.

    The contributions are the operations of one graph that hand gradients to the engine, each with
    its gradient as input 1. Returns how many edges were added.
    """
    contribution_of: dict[tf.Operation, tf.Operation] = {}
    ancestors: set[tf.Operation] = set()  # What the contributions so far depend on.
    for contribution in contributions:
        source = _source(contribution.inputs[1].op)
        if source is not None:
            contribution_of[source] = contribution
    for opened in {contribution.inputs[0].op for contribution in contribution_of.values()}:
        for op in opened.graph.get_operations():
            if op._id < opened._id and op.op_def is not None and op.op_def.is_stateful:
                _add_ancestors(op, ancestors)
    added = 0
    # In the order in which the gradients were built, which is that of the backward pass.
    for source in sorted(contribution_of, key=lambda op: op._id):
        contribution = contribution_of[source]
        _add_ancestors(contribution, ancestors)
        for tensor in source.inputs:
            for user in tensor.consumers():
                # An edge to what a contribution depends on would close a cycle.
                if user in ancestors or user in contribution_of:
                    continue
                user._add_control_input(contribution)
                added += 1
    return added


def _source(op: tf.Operation) -> tf.Operation | None:
    """The operation that computed a gradient of weights, or None."""
    for _ in range(_MAX_PASSED):
        if op.type in _WEIGHT_GRADIENTS:
            return op
        if op.type not in _PASS_THROUGH:
            return None
        op = op.inputs[0].op
    return None


def _add_ancestors(op: tf.Operation, known: set[tf.Operation]) -> None:
    stack = [op]
    while stack:
        op = stack.pop()
        if op in known:
            continue
        known.add(op)
        stack.extend(tensor.op for tensor in op.inputs)
        stack.extend(op.control_inputs)


def run_when_ready(op: tf.Operation | None) -> None:
    """Lets an operation run when its inputs are there, though it has an effect.

    Operations with effects would be chained to each other otherwise.
    """
    if op is None or tf.executing_eagerly():
        return
    manager = getattr(op.graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(op)
