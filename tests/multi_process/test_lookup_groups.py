# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which lookups travel together, and which do not wait for each other in a circle."""

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
@pytest.mark.timeout(150)
def test_a_lookup_after_a_write_that_an_earlier_one_decides():
    for code, output in ranks_module.run_ranks(2, _SCRIPT, timeout=120):
        assert code == 0, output[-3000:]
        assert "read what was written" in output


_TABLES = """
    import collections
    import os

    import keras
    import numpy as np

    import tfdear

    TABLES, STEPS, BATCH = 20, 4, 9

    strategy = tfdear.DearStrategy()
    with strategy.scope():
        inputs = keras.Input((TABLES,), dtype="int32")
        vectors = [
            tfdear.layers.ShardedEmbedding(
                10 + number, 1 + number, partition=("row", "column")[number % 2]
            )(inputs[:, number])
            for number in range(TABLES)
        ]
        outputs = keras.layers.Dense(1)(keras.layers.Concatenate()(vectors))
        model = keras.Model(inputs, outputs)
        model.compile("adam", "mse")
    ids = np.random.default_rng(0).integers(0, 10, (STEPS * BATCH, TABLES))
    model.fit(ids, ids[:, :1] / 10.0, BATCH, verbose=0)
    strategy.synchronize()
    kinds = collections.Counter(event.kind for event in strategy.events())
    parts = ("embedding_ids", "embedding_vectors", "embedding_prior", "embedding_delayed")
    # What looks ahead is one more exchange of each kind, also of all tables; the last step has
    # nothing to look ahead to but says so.
    ahead = STEPS if os.environ["TFDEAR_EMBEDDING_SCHEDULE"] == "2d" else 0
    more = max(ahead - 1, 0)
    expected = [STEPS + ahead, STEPS + more, STEPS, more]
    assert [kinds[kind] for kind in parts] == expected, kinds
    assert kinds["row_update"] == (STEPS + more) * TABLES, kinds
    print("one exchange of each kind in a step")
    strategy.barrier()
"""


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(150)
@pytest.mark.parametrize("schedule", ["2d", pytest.param("none", marks=pytest.mark.long)])
def test_twenty_tables_are_in_one_exchange(schedule):
    env = {"TFDEAR_EMBEDDING_SCHEDULE": schedule}
    for code, output in ranks_module.run_ranks(3, _TABLES, env, timeout=120):
        assert code == 0, output[-3000:]
        assert "one exchange of each kind in a step" in output


_CIRCLE = """
    import tensorflow as tf

    import tfdear
    from tfdear.engine import library

    strategy = tfdear.DearStrategy(timeout=15.0)
    with strategy.scope():
        layers = [tfdear.layers.ShardedEmbedding(10, 4, name=name) for name in ("first", "second")]
        for layer in layers:
            layer.build(None)

    @tf.function
    def step(ids):
        extended = strategy.extended
        group = extended.lookup_groups.group_for(ids, extended.reducer.order)
        tables = [layer.table for layer in layers]
        first, second = (group.add(t.placement, t.number, t.name, None) for t in tables)
        ops = library.load()
        ops.dear_contribute_ids(group.ticket, ids, index=first, number=tables[0].number)
        found, *_ = ops.dear_gathered_ids(group.ticket, index=first, name="first_ids")
        # The ids of all tables are gathered at once; these wait for those.
        ops.dear_contribute_ids(group.ticket, found, index=second, number=tables[1].number)
        return found

    strategy.barrier()
    step(tf.constant([1, 2]))
"""


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(150)
def test_ops_that_wait_for_each_other_end_with_an_error():
    for code, output in ranks_module.run_ranks(2, _CIRCLE, timeout=120):
        assert code != 0
        assert "has had operations that wait" in output, output[-3000:]
        assert "15 s (DearStrategy's timeout): first_ids." in output, output[-3000:]
