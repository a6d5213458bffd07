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

        # Where TensorFlow takes a variable for a tensor, too.
        with tf.GradientTape() as tape:
            squares = tf.square(table)
        np.testing.assert_array_equal(squares, whole**2)
        np.testing.assert_array_equal(tape.gradient(squares, table), 2 * whole)
        strategy.barrier()

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
@pytest.mark.parametrize(
    "world_size",
    [
        1,
        pytest.param(3, marks=pytest.mark.newest_only),
        *(pytest.param(size, marks=pytest.mark.long) for size in (2, 4)),
    ],
)
def test_whole_reads(world_size):
    for code, output in ranks.run_ranks(world_size, SCRIPT):
        assert code == 0, output[-4000:]
        assert "done" in output


AFTER_THE_END = """
    import sys
    import time

    import tfdear

    strategy = tfdear.DearStrategy(timeout=float(sys.argv[1]))
    with strategy.scope():
        layer = tfdear.layers.ShardedEmbedding(20, 6, name="words")
        layer.build()
    strategy.barrier()
    if strategy.rank > 0:
        if sys.argv[2] == "late":
            assert strategy.extended.table_service._chief_is_done.wait(60)
        else:
            time.sleep(2)
        try:
            print("read", layer.get_weights()[0].shape)
        except tfdear.errors.TfdearError as error:
            print("refused:", error)
"""


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(150)
def test_rank_0_waits_at_its_end_for_who_still_reads():
    for code, _ in (results := ranks.run_ranks(3, AFTER_THE_END, arguments=("60", "soon"))):
        assert code == 0, results
    assert all("read (20, 6)" in output for _, output in results[1:])


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(150)
def test_a_read_after_the_end_of_rank_0_says_so():
    _, (code, output) = ranks.run_ranks(2, AFTER_THE_END, arguments=("5", "late"))
    assert code == 0, output[-4000:]
    assert "refused: Rank 1 cannot read layer 'words'" in output, output[-4000:]
    assert "rank 0 has ended its script" in output and "raise `timeout`" in output
