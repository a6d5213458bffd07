# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains a small model, and waits where strangers are to come: strangers_job.py FOLDER [FAULT].

Variables: STRANGERS_RELAY, the "host:port" under which rank 1 looks for the data port of rank 0;
STRANGERS_FILES, how many descriptors rank 0 may have. FAULT: what rank 2 sends to rank 0 in place
of what belongs there, on a connection for gradients.
"""

import json
import os
import pathlib
import random
import resource
import socket
import struct
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfdear
from tfdear.base.names import Lane
from tfdear.rendezvous import data_connections

FOLDER = pathlib.Path(sys.argv[1])
FAULT = sys.argv[2] if len(sys.argv) > 2 else ""
RANK = int(os.environ["TFDEAR_RANK"])
BATCHES, EXCHANGE_BATCH, FAULTY_BATCH = 400, 10, 20
FAULTS = {
    "noise": random.Random(1).randbytes(1 << 16),
    "zeros": bytes(1 << 16),
    # A name and a length: none, and nearly all there are.
    "empty frame": struct.pack("<2Q", 1, 0),
    "endless frame": struct.pack("<2Q", 1, (1 << 63) - 1) + bytes(1 << 16),
    "half a header": b"\x01" * 5,
}
held = []  # Second descriptors of this rank's connections for gradients.


def may_go(place):
    """Whether the test lets all ranks, or this one, go on."""
    return any((FOLDER / f"go_{place}{suffix}").exists() for suffix in ("", f"_{RANK}"))


def stop_at(place):
    """Waits here until this rank may go on."""
    (FOLDER / f"{place}_{RANK}").touch()
    end = time.monotonic() + 300
    while not may_go(place):
        if time.monotonic() > end:
            raise TimeoutError(f"nobody lets rank {RANK} go on from {place}")
        time.sleep(0.02)


connect = data_connections.DataConnections._connect
address_of = data_connections.DataConnections._address_of


def connect_later(self, group, ranks, connections):
    """Waits while its port is open already."""
    if RANK > 0 and not (FOLDER / f"connecting_{RANK}").exists():
        stop_at("connecting")
    descriptors = connect(self, group, ranks, connections)
    if FAULT and RANK == 2 and group == Lane.GRADIENTS:
        held.extend(os.dup(descriptor) for descriptor in descriptors[list(ranks).index(0)])
    return descriptors


relayed = []  # The port of rank 0 that the relay leads to: the first one.


def relay_to_0(self, rank):
    address = address_of(self, rank)
    if RANK != 1 or rank != 0 or address is None or "STRANGERS_RELAY" not in os.environ:
        return address
    if not relayed:
        relayed.append(address)
    host, port = os.environ["STRANGERS_RELAY"].split(":")
    return (host, int(port)) if address == relayed[0] else address


class Pace(keras.callbacks.Callback):
    """Goes slowly until the test lets it go; notes the losses, and what ranks exchange once."""

    def __init__(self, strategy):
        super().__init__()
        self.strategy = strategy
        self.losses = []
        self.exchanged = None

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]).hex())
        (FOLDER / f"training_{RANK}").touch()
        if FAULT and RANK == 2 and batch == FAULTY_BATCH:
            for descriptor in held:
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    connection.setblocking(True)
                    connection.sendall(FAULTS[FAULT])
                    if FAULT == "half a header":
                        connection.shutdown(socket.SHUT_WR)
        if RANK == 0:
            (FOLDER / "batch.new").write_text(str(batch))
            (FOLDER / "batch.new").replace(FOLDER / "batch")
        if batch == EXCHANGE_BATCH:
            self.exchange()
        if RANK == 0:
            if batch == BATCHES - 1:
                stop_at("training")
            elif not may_go("training"):
                time.sleep(0.03)

    def exchange(self):
        """Uses a group for the first time, whose ranks connect now: the last one late."""
        if RANK == 2:
            stop_at("exchanging")
        rows = tf.constant([[RANK, row] for row in range(6)], tf.int64)
        received, counts = self.strategy.all_to_all(rows, [1, 2, 3])
        self.exchanged = [received.numpy().tolist(), counts.numpy().tolist()]


def main():
    if RANK == 0 and "STRANGERS_FILES" in os.environ:
        number = int(os.environ["STRANGERS_FILES"])
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))
    data_connections.DataConnections._connect = connect_later
    data_connections.DataConnections._address_of = relay_to_0
    if RANK == 2:
        stop_at("meeting")
    strategy = tfdear.DearStrategy()
    keras.utils.set_random_seed(1)
    inputs = np.random.RandomState(1).randn(6 * BATCHES, 5).astype("float32")
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([5]), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)]
        )
        model.compile("adam", "mse")
    pace = Pace(strategy)
    model.fit(inputs, inputs.sum(1), batch_size=6, shuffle=False, verbose=0, callbacks=[pace])
    tf.train.Checkpoint(model=model).write(str(FOLDER / f"checkpoint_{RANK}"))
    weights = [np.asarray(weight).tobytes().hex() for weight in model.weights]
    report = {"losses": pace.losses, "exchanged": pace.exchanged, "weights": weights}
    (FOLDER / f"rank_{RANK}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
