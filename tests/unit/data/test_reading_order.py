# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Functions read in the order of the program where that is asked for."""

import pytest
import tensorflow as tf

from tfdear.data import iterators


def made(in_order):
    iterator = iterators.DistributedIterator(tf.data.Dataset.range(4))
    iterator.in_order = in_order
    return iterator


def reads_after(function, *arguments):
    """Of every read of an iterator, how many reads it waits for."""
    graph = function.get_concrete_function(*arguments).graph
    return [
        sum(before.type.startswith("IteratorGetNext") for before in op.control_inputs)
        for op in graph.get_operations()
        if op.type.startswith("IteratorGetNext")
    ]


@pytest.mark.parametrize("in_order", (False, True))
def test_a_read_waits_for_the_one_before(in_order):
    @tf.function
    def read(one, other):
        first = other.get_next_as_optional().get_value()
        return first + 10 * next(one)

    one, other = made(in_order), made(in_order)
    assert reads_after(read, one, other) == [0, int(in_order)]
    assert [int(read(one, other)) for _ in range(4)] == [0, 11, 22, 33]


def test_branches_read_their_own():
    @tf.function
    def read(one, other, flag):
        number = next(one)
        if flag:
            number += 10 * next(other)
        return number

    one, other = made(True), made(True)
    assert [int(read(one, other, tf.constant(flag))) for flag in (True, False, True)] == [0, 1, 12]
