# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Whole sharded tables in graphs: gathered once, and anew where something may have changed them."""

import pytest
import ranks

SCRIPT = """
    import numpy as np
    import tensorflow as tf

    import tfdear
    from tfdear.gradients import whole_table

    ROWS, COLUMNS = 11, 5

    strategy = tfdear.DearStrategy()


    def gathers(function, *arguments):
        graph = function.get_concrete_function(*arguments).graph
        return sum(op.type == "DearAllGather" for op in graph.get_operations())


    for partition in ("column", "row"):
        with strategy.scope():
            layer = tfdear.layers.ShardedEmbedding(ROWS, COLUMNS, partition=partition)
            layer.build()
        table = layer.table
        whole = table.numpy()
        strategy.barrier()

        @tf.function
        def block(begin, end):
            return whole_table.read_block(table, begin, end)

        for begin, end in [(0, 0), (0, 1), (3, 8), (10, 11), (0, ROWS), (7, 7)]:
            found = block(tf.constant(begin, tf.int64), tf.constant(end, tf.int64))
            np.testing.assert_array_equal(found, whole[begin:end])
            np.testing.assert_array_equal(whole_table.read_block(table, begin, end), found)

        @tf.function
        def twice():
            return table.read_whole(), table.read_whole()

        for found in twice():
            np.testing.assert_array_equal(found, whole)
        assert gathers(twice) == (strategy.world_size > 1)

        @tf.function
        def add_one():
            table.assign(table.read_whole() + 1)

        @tf.function
        def changed():
            before = table.read_whole()
            table.assign(before + 1)
            between = table.read_whole()
            add_one()
            after = table.read_whole()
            for _ in tf.range(3):
                table.assign(table.read_whole() + 1)
            return before, between, after, table.read_whole()

        for found, added in zip(changed(), (0, 1, 2, 5), strict=True):
            np.testing.assert_allclose(found, whole + added, rtol=1e-5)
        np.testing.assert_allclose(table.numpy(), whole + 5, rtol=1e-5)
        strategy.barrier()
    print("done")
"""


@pytest.mark.multi_process
@pytest.mark.timeout(150)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_whole_reads(world_size):
    for code, output in ranks.run_ranks(world_size, SCRIPT):
        assert code == 0, output[-4000:]
        assert "done" in output
