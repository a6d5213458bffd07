# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""TFDEAR_TLS=1: who is on the way between two ranks learns nothing, and no number changes."""

import _ctypes
import json
import os
import pathlib
import subprocess
import sys

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only]

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
# Of each other's node; examples say their numbers to whoever can read.
cache = tfdear.data.DataCache(
    tf.data.Dataset.range(300),
    lambda number: tf.fill([50], number + 0x1122334455667788),
    memory="1MB",
    strategy=strategy,
)
batches = [rows.tobytes().hex() for _ in range(2) for rows in cache.batches(10).as_numpy_iterator()]
fetched = cache.statistics()["fetched"]
strategy.barrier()
seen = b"".join(bytes(part) for relay in relays for part in relay.sent + relay.received)
report = {
    "losses": [loss.hex() for loss in history.history["loss"]],
    "marks": marks.numpy().tolist(),
    "bytes": len(seen),
    "read": [(0x0123456789ABCDEF + rank).to_bytes(8, "little") in seen for rank in range(2)],
    "examples": [
        sum((0x1122334455667788 + number).to_bytes(8, "little") in seen for number in part)
        for part in (range(150), range(150, 300))
    ],
    "batches": batches,
    "fetched": fetched,
    "transports": strategy.statistics()["transports"],
}
print("REPORT", json.dumps(report), flush=True)
""".replace("HELPERS", repr(str(pathlib.Path(__file__).parents[1] / "helpers")))


@pytest.mark.timeout(240)
def test_only_data_in_the_clear_can_be_read_on_the_way():
    losses, batches = [], [[], []]
    for encrypted in "01":
        variables = {"TFDEAR_SHARED_MEMORY": "0", "TFDEAR_TLS": encrypted}
        nodes = [variables | {"TFDEAR_NODE_RANK": str(rank)} for rank in range(2)]
        for rank, (code, output) in enumerate(run_ranks(2, _JOB, nodes.__getitem__)):
            assert code == 0, output
            report = json.loads(output.split("REPORT ", 1)[1].splitlines()[0])
            assert set(report["transports"].values()) == {"tcp"}
            assert report["marks"] == [0x0123456789ABCDEF] * 100 + [0x0123456789ABCDEF + 1] * 100
            losses.append(report["losses"])
            batches[rank].append(report["batches"])
            assert report["fetched"] > 50
            if rank == 1:
                assert report["bytes"] > 100_000
                # Rank 1 has asked rank 0 for its examples, and rank 0 rank 1.
                assert [number > 50 for number in report["examples"]] == [encrypted == "0"] * 2
                assert encrypted == "0" or report["examples"] == [0, 0]
                assert report["read"] == [encrypted == "0"] * 2
    assert losses.count(losses[0]) == 4
    for plain, encrypted in batches:
        assert plain == encrypted and len(plain) == 60


_START = "import tfdear\ntfdear.DearStrategy()"


@pytest.mark.timeout(120)
def test_all_ranks_encrypt_or_none_does():
    for code, output in run_ranks(2, _START, lambda rank: {"TFDEAR_TLS": str(rank)}):
        assert code == 1, output
        assert "TFDEAR_TLS: 0 on rank 0; 1 on rank 1" in output


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("library", "why"),
    [
        pytest.param(None, "libgnutls.so.30: file too short", id="none"),
        pytest.param(
            _ctypes.__file__,
            "undefined symbol: gnutls_init",
            marks=pytest.mark.long,
            id="another",
        ),
    ],
)
def test_a_machine_without_the_library_says_so(tmp_path, library, why):
    # Where the loader looks first, and no further.
    path = tmp_path / "libgnutls.so.30"
    if library is None:
        path.touch()
    else:
        path.symlink_to(library)
    script = tmp_path / "script.py"
    script.write_text(_START)
    variables = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONPATH": str(pathlib.Path(__file__).parents[2]),
        "TFDEAR_TLS": "1",
        "TFDEAR_SHARED_MEMORY": "0",
    }
    process = subprocess.run(
        [sys.executable, "-m", "tfdear", "run", "-n", "2", str(script)],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert process.returncode != 0
    assert "TFDEAR_TLS=1 needs GnuTLS 3.6.5 or later, which cannot be loaded: " in process.stdout
    assert why in process.stdout
    assert "Install it (libgnutls30 on Debian and Ubuntu)" in process.stdout


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
