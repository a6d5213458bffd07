# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Options of a strategy between ranks: they agree, take effect, or say that they have none."""

import json

import numpy as np
import pytest
from ranks import Ranks, run_ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only]

_JOB = """
import json
import keras
import numpy as np
import tensorflow as tf
import tfdear

strategy = tfdear.DearStrategy()
report = {}
inputs = np.array([[1.0], [2.0], [6.0]], "float32")
with strategy.scope():
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.layers.Input((1,)), dense])
    model.compile(keras.optimizers.SGD(1.0), "mse")
    dropout = keras.layers.Dropout(0.5)
model.fit(inputs, inputs, batch_size=3, shuffle=False, verbose=0)
report["weight"] = float(model.get_weights()[0][0, 0])
masks = strategy.run(tf.function(lambda: dropout(tf.ones([1, 64]), training=True)))
report["masks"] = strategy.all_gather(masks).numpy().tolist()

run_options = tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)
communication = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=1 << 20)

def step():
    context = tf.distribute.get_replica_context()
    return context.all_reduce("sum", tf.constant(1.0), options=communication)

for _ in range(2):
    report["sum"] = float(strategy.run(step, options=run_options))
rows = tf.data.Dataset.range(4).batch(4)
input_options = tf.distribute.InputOptions(experimental_per_replica_buffer_size=2)
for _ in range(2):
    strategy.experimental_distribute_dataset(rows, input_options)
report["connections"] = strategy._job.options.connections
with strategy.scope():
    for exchange in ("auto", "all_to_all"):
        layer = tfdear.layers.ShardedEmbedding(64, 32, exchange=exchange)
        layer.build()
        report[exchange] = layer.table.placement.shard_shape
print("REPORT", json.dumps(report), flush=True)
"""

_OPTIONS = {
    "TFDEAR_WEIGHTING": "replica",
    "TFDEAR_SHARED_SEEDS": "1",
    "TFDEAR_CONNECTIONS": "2",
    "TFDEAR_SHARED_MEMORY": "0",
    "TFDEAR_COMPRESSION": "MSTopK(0.01)",
    "TFDEAR_CLEANUP_TIMEOUT": "30",
    "TFDEAR_BACKEND": "gloo",
    "TFDEAR_EMBEDDINGS": "all_gather",
}


def _report(output):
    return json.loads(output.split("REPORT ", 1)[1].splitlines()[0])


@pytest.mark.timeout(120)
def test_options_take_effect_or_are_warned_about_once():
    results = run_ranks(2, _JOB, _OPTIONS)
    for rank, (code, output) in enumerate(results):
        assert code == 0, output
        report = _report(output)
        # Rank 0 has one row, rank 1 has two; both count alike. The gradient is -2 x x.
        expected = (2 * 1.0 + np.mean([2 * 4.0, 2 * 36.0])) / 2
        np.testing.assert_allclose(report["weight"], expected, rtol=1e-6)
        assert report["masks"][0] == report["masks"][1]
        assert 0.0 in report["masks"][0] and 2.0 in report["masks"][0]
        assert (report["sum"], report["connections"]) == (2.0, 2)
        # What a layer says itself wins.
        assert (report["auto"], report["all_to_all"]) == ([64, 32], [64, 16])
        for words in (
            "RunOptions has no effect under DearStrategy: experimental_enable_dynamic_batch_size",
            "CommunicationOptions has no effect under DearStrategy: bytes_per_pack=1048576.",
            "InputOptions has no effect under DearStrategy: experimental_per_replica_buffer_size=2",
        ):
            assert output.count(words) == 1, output
        compression = output.count("has no effect: all ranks are on one node")
        assert compression == (1 if rank == 0 else 0), output


@pytest.mark.timeout(120)
def test_options_that_must_agree_are_compared():
    differing = {
        "TFDEAR_WEIGHTING": "replica",
        "TFDEAR_FUSION": "FixedSize(4096)",
        "TFDEAR_SHARED_SEEDS": "1",
        "TFDEAR_CONNECTIONS": "2",
        # These are a rank's own.
        "TFDEAR_TIMEOUT": "200",
        "TFDEAR_SHARED_MEMORY": "0",
        "TFDEAR_BACKEND": "tcp",
    }
    for code, output in run_ranks(2, _JOB, lambda rank: differing if rank else {}):
        assert code == 1
        assert "weighting: 'examples' on rank 0; 'replica' on rank 1." in output
        assert "fusion: Planned() on rank 0; FixedSize(bytes=4096)" in output
        assert "shared_seeds: False on rank 0; True on rank 1." in output
        assert "connections: 0 on rank 0; 2 on rank 1." in output
        assert "timeout:" not in output and "shared_memory:" not in output


@pytest.mark.timeout(60)
def test_one_process_checks_groups_and_says_that_it_records_nothing(tmp_path):
    script = """
import tfdear

strategy = tfdear.DearStrategy()
for call in (
    lambda: strategy.all_reduce(1.0, "nodes"),
    lambda: strategy.reduce_scatter([1.0], "nodes"),
    lambda: strategy.all_gather([1.0], "nodes"),
    lambda: strategy.all_to_all([1.0], [1], "nodes"),
    lambda: strategy.broadcast(1.0, 0, "nodes"),
    lambda: strategy.barrier("nodes"),
):
    try:
        call()
    except ValueError as error:
        assert "`group` must be one of" in str(error)
    else:
        raise AssertionError("a group that does not exist was accepted")
"""
    names = ("TFDEAR_TIMELINE", "TFDEAR_TRACE")
    variables = {name: str(tmp_path / name) for name in names}
    with Ranks(1, script, variables, launcher=False) as ranks:
        assert ranks.wait() == [0], ranks.output(0)
        for name in names:
            assert f"{name}={tmp_path / name} has no effect" in ranks.output(0)


@pytest.mark.timeout(60)
def test_a_timeline_that_cannot_be_written_ends_the_start_on_all_ranks():
    script = """
import tfdear
from tfdear.job import job

try:
    tfdear.DearStrategy(init_timeout=50)
except ValueError as error:  # As in a notebook.
    assert "TFDEAR_TIMELINE=/proc/timeline.json cannot be written" in str(error), error
    assert job.current() is None
    print("refused")
"""

    def variables(rank):
        # Everybody may look into that folder, and nobody make a file there.
        return {"TFDEAR_TIMELINE": "/proc/timeline.json" if rank else "timeline.json"}

    (code, output), (_, refused) = run_ranks(2, script, variables)
    assert code == 1 and "rank 1 " in output and "cannot be written" in output, output
    assert "refused" in refused, refused
