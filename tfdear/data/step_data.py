# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Lets the collectives and writes of a step run only when the step's data are there.

A step that finds its dataset exhausted fails. By then TensorFlow may have run what does not depend
on the data: a ticket in the order of collectives would be taken and never used, and the optimizer's
step counter would advance on some ranks and not on others.
"""

import contextlib

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import call_time


def current_graph() -> tf.Graph | None:
    """The graph that ops are added to, or None: they run at once."""
    return None if tf.executing_eagerly() else _tf_private.ops.get_default_graph()


def read() -> contextlib.AbstractContextManager[None]:
    """Within it, ops run only when the batches that the graph itself reads are there.

    The function of a step may read from an iterator instead of taking the batch as an argument.
    """
    if (graph := current_graph()) is None:
        return contextlib.nullcontext()
    reads = [op for op in graph.get_operations() if op.type.startswith("IteratorGetNext")]
    return tf.control_dependencies(reads)


def required() -> contextlib.AbstractContextManager[None]:
    """Within it, ops run only when the data of the current step are there."""
    context = tf.distribute.get_replica_context()
    data = getattr(context, "data", None)
    if data is None or (graph := current_graph()) is None:
        return contextlib.nullcontext()
    if context.data_in_graph.get(graph) is None:
        function = call_time.function_of(graph)
        if function is not call_time.function_of(context.graph) and function is not None:
            scalar = tf.TensorSpec((), tf.bool)
            data = call_time.value(function, "tfdear_step_data", scalar, _there_at_call)
        # Control edges do not reach into the functions that a step calls; a captured value does.
        with tf.control_dependencies(None):
            context.data_in_graph[graph] = tf.identity(data)
    return tf.control_dependencies([context.data_in_graph[graph]])


def _there_at_call() -> tf.Tensor:
    """Something that is there when the data of the step that calls a function are."""
    with required():
        return tf.identity(True)
