# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A cache that gives examples to other nodes listens on no port: nobody can come to it."""

import json

import pytest
from ranks import run_ranks

_JOB = """
import json, os, socket
import keras
import numpy as np
import psutil
import tensorflow as tf
import tfdear

def listening():
    return sorted(
        tuple(found.laddr)
        for found in psutil.Process().net_connections("tcp")
        if found.status == psutil.CONN_LISTEN
    )

strategy = tfdear.DearStrategy()
numbers = np.arange(500)
values = np.stack([numbers % 7, numbers % 11, numbers % 3], 1).astype(np.float32) / 10
records = tf.data.Dataset.from_tensor_slices((values, numbers.astype(np.float32) / 100))
# Two of them: their connections are not mixed up.
caches = [tfdear.data.DataCache(records, memory="1MB") for _ in range(2)]
seen = [listening()]
note = keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: seen.append(listening())
)
with strategy.scope():
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("adam", "mse")
for cache in caches:
    model.fit(cache.batches(16, seed=1), epochs=3, verbose=0, callbacks=[note])
report = {
    "ports": [[port for _, port in ports] for ports in (seen[0], *seen[2:])],
    "fetched": [cache.statistics()["fetched"] for cache in caches],
    "refused": [cache.statistics()["refused"] for cache in caches],
    "coordinator": int(os.environ["TFDEAR_COORDINATOR"].rpartition(":")[2]),
}
print("REPORT", json.dumps(report), flush=True)
"""


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(240)
@pytest.mark.parametrize("connections", [1, 3])
def test_a_cache_that_serves_other_nodes_listens_nowhere(connections):
    variables = {"TFDEAR_CONNECTIONS": str(connections)}
    results = run_ranks(
        3, _JOB, lambda rank: {"TFDEAR_NODE_RANK": str(rank % 2), **variables}, timeout=200
    )
    for rank, (code, output) in enumerate(results):
        assert code == 0, output[-3000:]
        line = next(line for line in output.splitlines() if line.startswith("REPORT "))
        report = json.loads(line.removeprefix("REPORT "))
        # Where the ranks meet, on rank 0, and nothing else.
        assert report["ports"] == [[report["coordinator"]] if rank == 0 else []] * len(
            report["ports"]
        )
        assert all(fetched > 0 for fetched in report["fetched"])
        assert report["refused"] == [0, 0]
