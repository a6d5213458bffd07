# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Counts the bytes that a rank's network device sends per collective, and its connections.

wire_bytes.py DEVICE OUT
"""

import json
import pathlib
import sys

import psutil
import tensorflow as tf

import tfdear

DEVICE, OUT = sys.argv[1], pathlib.Path(sys.argv[2])
PAYLOAD = 8 << 20
REPEATS = 4
COUNTER = pathlib.Path(f"/sys/class/net/{DEVICE}/statistics/tx_bytes")

strategy = tfdear.DearStrategy()
rows = PAYLOAD // 4
whole = tf.ones([rows])
shard = tf.ones(
    [
        (strategy.rank + 1) * rows // strategy.world_size
        - strategy.rank * rows // strategy.world_size
    ]
)
collectives = {
    "reduce_scatter": lambda: strategy.reduce_scatter(whole),
    "all_gather": lambda: strategy.all_gather(shard),
    "all_reduce": lambda: strategy.all_reduce(whole),
}
sent = {}
for name, collective in collectives.items():
    collective()  # Buffers and windows grow.
    strategy.barrier()
    before = int(COUNTER.read_text())
    for _ in range(REPEATS):
        collective()
    strategy.barrier()
    sent[name] = (int(COUNTER.read_text()) - before) / (REPEATS * PAYLOAD)
sent["connections"] = sum(
    connection.status == psutil.CONN_ESTABLISHED
    for connection in psutil.Process().net_connections("tcp")
)
OUT.with_suffix(f".{strategy.rank}").write_text(json.dumps(sent))
