# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains from a cache over two nodes while strangers connect to what serves its examples."""

import collections
import contextlib
import json
import pathlib
import random
import socket
import struct
import sys
import threading

import keras
import numpy as np
import psutil
import tensorflow as tf

import tfdear

directory, connections = pathlib.Path(sys.argv[1]), int(sys.argv[2])
strategy = tfdear.DearStrategy()
MAGIC = struct.pack("<Q", 0x3173656C706D6178)


def listening():
    return {
        tuple(found.laddr)
        for found in psutil.Process().net_connections("tcp")
        if found.status == psutil.CONN_LISTEN
    }


before = listening()
numbers = np.arange(500)
values = np.stack([numbers % 7, numbers % 11, numbers % 3], 1).astype(np.float32) / 10
cache = tfdear.data.DataCache(
    tf.data.Dataset.from_tensor_slices((values, numbers.astype(np.float32) / 100)), memory="1MB"
)
(address,) = listening() - before


def bother():
    """Connects again and again, in every way but the right one."""
    draw = random.Random(strategy.rank)
    open_ones = collections.deque()
    for _ in range(connections):
        with contextlib.suppress(OSError):
            stranger = socket.create_connection(address, timeout=5)
            kind = draw.randrange(5)
            if kind == 1:
                stranger.sendall(draw.randbytes(draw.randrange(1, 300)))
            elif kind == 2:
                stranger.sendall(MAGIC + draw.randbytes(32) + draw.randbytes(24))
            elif kind == 3:
                stranger.sendall(MAGIC[: draw.randrange(8)])
            elif kind == 4:  # Half open, until many later ones have come.
                open_ones.append(stranger)
                if len(open_ones) > 40:
                    open_ones.popleft().close()
                continue
            stranger.close()
    for stranger in open_ones:
        stranger.close()


bothering = threading.Thread(target=bother)
bothering.start()
with strategy.scope():
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [keras.Input([3]), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
model.fit(cache.batches(16, seed=1), epochs=8, verbose=0)
bothering.join()
model.fit(cache.batches(16, seed=2), epochs=1, verbose=0)
report = {
    "weights": [np.asarray(weight).tolist() for weight in model.weights],
    "statistics": cache.statistics(),
}
(directory / f"rank_{strategy.rank}.json").write_text(json.dumps(report))
