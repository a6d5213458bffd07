# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""TFDEAR_TLS=1: who is on the way between two ranks learns nothing, and no number changes."""

import json
import pathlib

import pytest
from ranks import run_ranks

pytestmark = pytest.mark.multi_process

# Rank 1 reaches rank 0 through a relay, which keeps what passes.
_JOB = """
import json, sys
sys.path.insert(0, HELPERS)
import keras
import numpy as np
import strangers
import tensorflow as tf
import tfdear
from tfdear.rendezvous import data_connections

address_of = data_connections.DataConnections._address_of
relays = []

def through_a_relay(self, rank):
    address = address_of(self, rank)
    if rank != 0 or address is None:
        return address
    if not relays:
        relays.append(strangers.Relay())
    relays[0].target = address
    return relays[0].address

data_connections.DataConnections._address_of = through_a_relay
strategy = tfdear.DearStrategy()
keras.utils.set_random_seed(1)
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((8,))])
    model.add(keras.layers.Dense(64))
    model.add(keras.layers.Dense(1))
    model.compile("adam", "mse")
inputs = np.random.RandomState(2).randn(64, 8).astype("float32")
history = model.fit(inputs, inputs[:, :1], batch_size=16, epochs=2, verbose=0)
marks = strategy.all_gather(tf.constant([0x0123456789ABCDEF + strategy.rank] * 100, tf.int64))
seen = b"".join(bytes(part) for relay in relays for part in relay.sent + relay.received)
report = {
    "losses": [loss.hex() for loss in history.history["loss"]],
    "marks": marks.numpy().tolist(),
    "bytes": len(seen),
    "read": [(0x0123456789ABCDEF + rank).to_bytes(8, "little") in seen for rank in range(2)],
    "transports": strategy.statistics()["transports"],
}
print("REPORT", json.dumps(report), flush=True)
""".replace("HELPERS", repr(str(pathlib.Path(__file__).parents[1] / "helpers")))


@pytest.mark.timeout(240)
def test_only_data_in_the_clear_can_be_read_on_the_way():
    losses = []
    for encrypted in "01":
        variables = {"TFDEAR_SHARED_MEMORY": "0", "TFDEAR_TLS": encrypted}
        for rank, (code, output) in enumerate(run_ranks(2, _JOB, variables)):
            assert code == 0, output
            report = json.loads(output.split("REPORT ", 1)[1].splitlines()[0])
            assert set(report["transports"].values()) == {"tcp"}
            assert report["marks"] == [0x0123456789ABCDEF] * 100 + [0x0123456789ABCDEF + 1] * 100
            losses.append(report["losses"])
            if rank == 1:
                assert report["bytes"] > 10_000
                assert report["read"] == [encrypted == "0"] * 2
    assert losses.count(losses[0]) == 4


_START = "import tfdear\ntfdear.DearStrategy()"


@pytest.mark.timeout(120)
def test_all_ranks_encrypt_or_none_does():
    for code, output in run_ranks(2, _START, lambda rank: {"TFDEAR_TLS": str(rank)}):
        assert code == 1, output
        assert "TFDEAR_TLS: 0 on rank 0; 1 on rank 1" in output


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"TFDEAR_TLS": "yes"}, "TFDEAR_TLS must be 0 or 1. Received: TFDEAR_TLS='yes'"),
        ({"TFDEAR_TLS": "1", "TFDEAR_BACKEND": "gloo"}, 'TFDEAR_TLS=1 needs backend "tcp"'),
        ({"TFDEAR_TLS": "1", "TFDEAR_INSECURE": "1"}, "TFDEAR_INSECURE=1 goes without one"),
    ],
)
def test_what_cannot_be_encrypted_is_refused(variables, words):
    for code, output in run_ranks(2, _START, variables):
        assert code == 1, output
        assert "ValueError: TFDEAR_TLS" in output and words in output, output
