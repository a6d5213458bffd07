# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Lookups that follow a write to their table do not wait for it in a circle."""

import pytest
import ranks as ranks_module

_SCRIPT = """
    import tensorflow as tf

    import tfdear

    strategy = tfdear.DearStrategy()
    with strategy.scope():
        layer = tfdear.layers.ShardedEmbedding(10, 4)
        layer.build(None)

    @tf.function
    def step(ids):
        before = layer(ids)
        layer.table.assign(tf.zeros([10, 4]) * tf.reduce_sum(before) + 2.0)
        return before, layer(ids)

    before, after = step(tf.constant([1, 2]))
    assert abs(before.numpy()).max() < 1
    assert (after.numpy() == 2).all()
    print("read what was written")
    strategy.barrier()
"""


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(100)
def test_a_lookup_after_a_write_that_an_earlier_one_decides():
    for code, output in ranks_module.run_ranks(2, _SCRIPT, timeout=60):
        assert code == 0, output[-3000:]
        assert "read what was written" in output
