# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ranks connect in the middle of a job, when they first exchange data."""

import json
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
