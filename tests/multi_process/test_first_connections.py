# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ranks connect in the middle of a job, when they first exchange data."""

import json
import os
import re
import signal
import time

import pytest
from ranks import Ranks, run_ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(200)]

_TRAINING = """
import json
import keras
import numpy as np
import tensorflow as tf
import tfdear

strategy = tfdear.DearStrategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
inputs = np.random.RandomState(2).randn(24, 3).astype("float32")
history = model.fit(inputs, inputs[:, :1], batch_size=6, epochs=2, verbose=0)
gathered = strategy.all_gather(tf.constant([strategy.rank]))
report = {
    "losses": [loss.hex() for loss in history.history["loss"]],
    "gathered": gathered.numpy().tolist(),
    "transports": strategy.statistics()["transports"],
}
print("REPORT", json.dumps(report), flush=True)
"""

_LEAVING = """
import sys, time
import tensorflow as tf
import tfdear

strategy = tfdear.DearStrategy()
if strategy.rank == 1:
    print("ends now", flush=True)
    sys.exit()
time.sleep(3)  # Its script has ended by then.
print("gathers now", flush=True)
strategy.all_gather(tf.constant([strategy.rank]))
"""


def reports_of(variables):
    results = run_ranks(3, _TRAINING, variables | {"TFDEAR_SHARED_MEMORY": "0"}, timeout=150)
    reports = []
    for code, output in results:
        assert code == 0, output[-3000:]
        line = next(line for line in output.splitlines() if line.startswith("REPORT "))
        reports.append(json.loads(line.removeprefix("REPORT ")))
    return reports


def test_without_a_secret_the_same_ranks_find_each_other():
    with_secret, without = reports_of({}), reports_of({"TFDEAR_INSECURE": "1"})
    assert with_secret == without
    assert all(report["gathered"] == [0, 1, 2] for report in without)
    assert set(without[0]["transports"].values()) == {"tcp"}


def test_who_has_left_before_the_first_connection_is_named():
    variables = {"TFDEAR_SHARED_MEMORY": "0", "TFDEAR_TIMEOUT": "100", "TFDEAR_HEARTBEAT": "5"}
    with Ranks(2, _LEAVING, variables) as job:
        job.wait_for_output(0, "gathers now", 100)
        begin = time.monotonic()
        assert job.wait([0], timeout=60) == [1]
        # At once, not when the timeout is over.
        assert time.monotonic() - begin < 30
        output = job.output(0)
        assert "rank 1 (" in output and "left the job" in output, output[-3000:]


# Rank 1 does not connect before the job ends, or `LATE` seconds have gone.
_CONNECTING_LATE = """
import pathlib, signal, sys, time
import keras
import numpy as np
import tensorflow as tf
import tfdear
from tfdear.base.names import Lane
from tfdear.rendezvous import data_connections

# Whoever starts the tests may have it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
connect = data_connections.DataConnections._connect

def connect_late(self, group, ranks, connections):
    print(f"connects {Lane(group).name}", flush=True)
    if self._rank == 1 and group == LANE:
        end = time.monotonic() + LATE
        while time.monotonic() < end:
            self._check(0)
            time.sleep(0.1)
    descriptors = connect(self, group, ranks, connections)
    print(f"is connected {Lane(group).name}", flush=True)
    return descriptors

data_connections.DataConnections._connect = connect_late
"""


def connecting_late(lane, seconds, script):
    text = _CONNECTING_LATE.replace("LATE", str(seconds)).replace("LANE", f"Lane.{lane}")
    return text + script


_VARIABLES = {
    "TFDEAR_SHARED_MEMORY": "0",
    "TFDEAR_TIMEOUT": "150",
    "TFDEAR_CLEANUP_TIMEOUT": "150",
    "TFDEAR_HEARTBEAT": "5",
}


def test_an_interrupt_ends_the_start():
    script = """
try:
    tfdear.DearStrategy()
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""
    with Ranks(2, connecting_late("CONTROL", 600, script), _VARIABLES) as job:
        for rank in range(2):
            job.wait_for_output(rank, "connects CONTROL", 100)
        os.kill(job.processes[0].pid, signal.SIGINT)
        codes = job.wait(timeout=60)
        assert 0 not in codes, codes
        assert "interrupted" in job.output(0), job.output(0)[-3000:]
        assert re.search(r"rank 0 \(.*KeyboardInterrupt", job.output(1)), job.output(1)[-3000:]


def test_who_waits_for_a_connection_hears_why_the_job_ends(tmp_path):
    script = """
strategy = tfdear.DearStrategy()
if strategy.rank == 2:
    while not all(pathlib.Path(sys.argv[1], str(rank)).exists() for rank in range(2)):
        time.sleep(0.01)
    time.sleep(2)  # The others wait in it by then.
    raise RuntimeError("rank 2 gives up")
pathlib.Path(sys.argv[1], str(strategy.rank)).touch()
strategy.all_gather(tf.constant([strategy.rank]))
"""
    late = connecting_late("EXCHANGES", 600, script)
    with Ranks(3, late, _VARIABLES, (str(tmp_path),)) as job:
        job.wait_for_output(0, "connects EXCHANGES", 100)
        assert job.wait(timeout=60) == [1] * 3
        for rank in range(2):
            assert re.search(r"rank 2 \(.*rank 2 gives up", job.output(rank), re.DOTALL), (
                job.output(rank)[-3000:]
            )


def test_updates_in_flight_at_the_end_may_still_connect():
    script = """
strategy = tfdear.DearStrategy()
with strategy.scope():
    table = tfdear.layers.ShardedEmbedding(6, 4, name="table")
    model = keras.Sequential([keras.Input([2], dtype="int32"), table, keras.layers.Flatten()])
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.SGD(0.5), "mse")
model.train_on_batch(np.array([[1, 2], [3, 4]]), np.zeros([2, 1], "float32"))
print("ends", flush=True)
"""
    with Ranks(2, connecting_late("EMBEDDING_ROWS", 5, script), _VARIABLES) as job:
        job.wait_for_output(0, "ends", 100)
        assert "is connected EMBEDDING_ROWS" not in job.output(0)
        assert job.wait(timeout=60) == [0, 0]
        for rank in range(2):
            assert "is connected EMBEDDING_ROWS" in job.output(rank), job.output(rank)[-3000:]
            assert "Error" not in job.output(rank), job.output(rank)[-3000:]
