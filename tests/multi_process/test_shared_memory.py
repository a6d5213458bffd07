# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ranks of a node exchange through shared memory where all of them can, else over TCP."""

import ast
import os
import time

import pytest
from ranks import run_ranks

# Prints transports and results; values whose sums in another order would have other bits.
_JOB = """
import numpy as np
import tensorflow as tf
import tfdear

strategy = tfdear.DearStrategy()
values = np.random.default_rng(strategy.rank).standard_normal(300007).astype("float32")
results = []
for group in ("world", "intra_node"):
    total = strategy.all_reduce(tf.constant(values), group=group)
    results.append(int(tf.reduce_sum(tf.bitcast(total, tf.int32)).numpy()))
    everything = strategy.all_gather(tf.constant(values[: 1000 + strategy.rank]), group=group)
    results.append(float(tf.reduce_sum(everything).numpy()))
print("REPORT", {"transports": strategy.statistics()["transports"], "results": results})
"""


def _run(world_size, environment):
    reports = []
    for code, output in run_ranks(world_size, _JOB, env=environment):
        assert code == 0, output[-4000:]
        line = next(line for line in output.splitlines() if line.startswith("REPORT "))
        reports.append(ast.literal_eval(line.removeprefix("REPORT ")))
    return reports


def _two_nodes(rank):
    return {"TFDEAR_NODE_RANK": str(rank // 2), "TFDEAR_COLLECTIVE": "hierarchical"}


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(240)
def test_nodes_share_memory_inside_and_results_do_not_depend_on_it():
    reports = _run(4, _two_nodes)
    for report in reports:
        assert report["transports"]["intra_node"] == "shared_memory", report
        assert report["transports"]["gradients_intra"] == "shared_memory", report
        assert report["transports"]["inter_node"] == "tcp", report
        assert report["transports"]["gradients_inter"] == "tcp", report
        assert report["transports"]["gradients"] == "tcp", report
    # Rank 3 alone refuses: its node uses TCP, the other one is not concerned.
    refused = _run(
        4, lambda rank: {**_two_nodes(rank), "TFDEAR_SHARED_MEMORY": "0" if rank == 3 else "1"}
    )
    transports = [report["transports"]["intra_node"] for report in refused]
    assert transports == ["shared_memory", "shared_memory", "tcp", "tcp"]
    assert [r["results"] for r in refused] == [r["results"] for r in reports]


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(120)
def test_one_node_needs_no_network_and_leaves_nothing_behind():
    before = set(os.listdir("/dev/shm"))
    reports = _run(2, {})
    for report in reports:
        for group in ("gradients", "control", "intra_node"):
            assert report["transports"][group] == "shared_memory", report
    by_tcp = _run(2, {"TFDEAR_SHARED_MEMORY": "0"})
    for report in by_tcp:
        assert set(report["transports"].values()) == {"tcp"}, report
    assert [report["results"] for report in by_tcp] == [report["results"] for report in reports]
    # What processes of other tests put there goes away with them.
    end = time.monotonic() + 60
    while left := set(os.listdir("/dev/shm")) - before:
        assert time.monotonic() < end, left
        time.sleep(0.5)


# Dense gradients, rows of an embedding, and norms, under one schedule.
_TRAINING = """
import hashlib
import os
import re

import keras
import numpy as np
import tensorflow as tf
import tfdear

strategy = tfdear.DearStrategy(schedule=os.environ["SCHEDULE"])
keras.utils.set_random_seed(1)
with strategy.scope():
    layers = [keras.layers.Embedding(50, 40), keras.layers.Flatten()]
    layers += [keras.layers.Dense(500, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input([8], dtype="int32"), *layers, keras.layers.Dense(3)])
    model.compile(tfdear.optimizers.LAMB(0.01), "mse")
random = np.random.RandomState(0)
batch = random.randint(0, 50, [12, 8]), random.rand(12, 3).astype("float32")
model.fit(tf.data.Dataset.from_tensors(batch).repeat(), steps_per_epoch=6, verbose=0)
strategy.synchronize()
digest = hashlib.sha1(b"".join(weight.numpy().tobytes() for weight in model.weights)).hexdigest()
# Of the segments that are larger than rings: addresses for fusion buffers.
segment = r"memfd:tfdear.*\\nSize: +(\\d+) kB\\n(?:\\w+:.*\\n)*?Rss: +(\\d+) kB"
with open("/proc/self/smaps") as file:
    segments = [(int(size), int(used)) for size, used in re.findall(segment, file.read())]
used_kb = [used for size, used in segments if size > 1 << 20]
print("REPORT", {"digest": digest, "used_kb": used_kb})
"""


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "schedule", ["dear", pytest.param("bytescheduler", marks=pytest.mark.long)]
)
def test_sums_in_memory_of_all_ranks_change_no_bit(schedule):
    def train(shared_memory):
        environment = {"SCHEDULE": schedule, "TFDEAR_SHARED_MEMORY": shared_memory}
        reports = []
        for code, output in run_ranks(3, _TRAINING, env=environment):
            assert code == 0, output[-4000:]
            line = next(line for line in output.splitlines() if line.startswith("REPORT "))
            reports.append(ast.literal_eval(line.removeprefix("REPORT ")))
        assert len({report["digest"] for report in reports}) == 1
        return reports

    shared, by_tcp = train("1"), train("0")
    assert shared[0]["digest"] == by_tcp[0]["digest"]
    for report in shared:
        assert len(report["used_kb"]) == 3, report
        assert max(report["used_kb"]) > 2600, "the gradients were elsewhere"
    assert [report["used_kb"] for report in by_tcp] == [[], [], []]
