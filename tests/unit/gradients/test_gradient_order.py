# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Contributions of gradients go before the rest of the backward pass, and nothing else changes."""

import numpy as np
import tensorflow as tf

from tfdear.gradients import order as gradient_order

_KERNELS = 4


def build(add_edges):
    """A chain of convolutions with side branches; stand-ins of the engine take its gradients."""
    random = np.random.RandomState(0)
    kernels = [tf.constant(random.randn(3, 3, 2, 2).astype("float32")) for _ in range(_KERNELS)]
    contributions = []

    @tf.function(autograph=False)
    def step(images):
        with tf.GradientTape() as tape:
            tape.watch(kernels)
            value = images
            for kernel in kernels:
                value = value + tf.nn.relu(tf.nn.conv2d(value, kernel, 1, "SAME"))
            loss = tf.reduce_sum(value * value)
        gradients = tape.gradient(loss, kernels)
        ticket = tf.constant(0.0)
        taken = []
        for gradient in reversed(gradients):
            # As the engine's op: the ticket first, then the gradient.
            taken.append(tf.raw_ops.IdentityN(input=[ticket, gradient])[1])
            contributions.append(taken[-1].op)
        added = gradient_order.contribute_gradients_first(contributions) if add_edges else 0
        return loss, taken, tf.constant(added)

    return step, contributions


def positions(graph):
    """A topological order that runs down the backward pass as early as it may."""
    order, done = {}, set()

    def visit(op):
        if op in done:
            return
        done.add(op)
        for before in [*op.control_inputs, *(tensor.op for tensor in op.inputs)]:
            visit(before)
        order[op] = len(order)

    inputs = [op for op in graph.get_operations() if op.type == "Conv2DBackpropInput"]
    for op in sorted(inputs, key=lambda op: op._id):
        visit(op)
    return order


def test_results_stay_and_order_changes():
    images = tf.constant(np.random.RandomState(1).randn(2, 8, 8, 2).astype("float32"))
    plain, _ = build(add_edges=False)
    ordered, contributions = build(add_edges=True)
    expected, received = plain(images), ordered(images)
    assert int(received[2]) >= _KERNELS
    tf.nest.map_structure(np.testing.assert_array_equal, expected[:2], received[:2])

    graph = ordered.get_concrete_function(images).graph
    order = positions(graph)
    of_graph = [op for op in contributions if op.graph is graph]
    # The gradient of the last layer is contributed before the backward pass reaches the next one.
    inputs = sorted(
        (op for op in graph.get_operations() if op.type == "Conv2DBackpropInput"),
        key=lambda op: op._id,
    )
    for contribution, following in zip(of_graph[:-1], inputs[1:], strict=False):
        assert order[contribution] < order[following]


def test_gradients_of_unknown_making_are_left_alone():
    @tf.function(autograph=False)
    def step(value):
        with tf.GradientTape() as tape:
            tape.watch(value)
            loss = tf.reduce_sum(tf.sin(value))
        gradient = tape.gradient(loss, value)
        taken = tf.raw_ops.IdentityN(input=[tf.constant(0.0), gradient])
        assert gradient_order.contribute_gradients_first([taken[1].op]) == 0
        return taken[1]

    np.testing.assert_allclose(step(tf.constant([0.0, 1.0])), np.cos([0.0, 1.0]), rtol=1e-6)
