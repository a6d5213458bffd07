# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Rendezvous with real processes: meeting, refusing, missing ranks, what listens where."""

import json
import socket

import pytest
from ports import free_port
from ranks import Ranks, run_ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only]

CONNECT = """
import json, os, sys
from tfdear.rendezvous import cluster
from tfdear.rendezvous import rendezvous

common = {
    "tfdear": os.environ.get("VERSION", "1"),
    "backend": os.environ.get("BACKEND", "gloo"),
    "device": "CPU",
}
meeting = rendezvous.connect(
    cluster.discover(), timeout=float(os.environ.get("TIMEOUT", "60")), common=common
)
"""


def result(output):
    """The object that a rank printed after "RESULT"."""
    return json.loads(output.split("RESULT ", 1)[1].splitlines()[0])


def test_store_and_exchange():
    script = (
        CONNECT
        + """
import itertools
from tfdear import errors
from tfdear.rendezvous.store import Store

rank = meeting.rank
# Every other call fails once, as when rank 0 is too busy to answer.
call, hiccups = Store._call, itertools.cycle([True, False])

def call_with_hiccups(*arguments):
    if next(hiccups):
        raise errors.StoreUnavailableError("try again", refused=True)
    return call(*arguments)

Store._call = call_with_hiccups
rounds = [meeting.exchange("number", str(10 * i + rank), 60) for i in range(3)]
Store._call = call
late = None
if rank != 1:
    try:
        meeting.exchange("late", "text \\u00e4", 0.3)
    except TimeoutError as error:
        late = str(error)
meeting.exchange("end", "", 60)
print("RESULT", json.dumps([rounds, late, meeting.lost_ranks()]))
meeting.exchange("end", "", 60)
"""
    )
    for rank, (code, output) in enumerate(run_ranks(3, script)):
        assert code == 0, output
        rounds, late, dead = result(output)
        assert rounds == [["0", "1", "2"], ["10", "11", "12"], ["20", "21", "22"]]
        assert late is None or ("'late'" in late and "0.3 s" in late and "missing: 1" in late)
        assert (late is None, dead) == (rank == 1, {})


def test_one_process_needs_no_network():
    script = """
import json
import psutil, tfdear
strategy = tfdear.DearStrategy()
print("RESULT", json.dumps([strategy.world_size, len(psutil.Process().net_connections())]))
"""
    with Ranks(1, script, launcher=False) as ranks:
        assert ranks.wait() == [0], ranks.output(0)
        assert result(ranks.output(0)) == [1, 0]


def test_rank_0_alone_listens_and_on_loopback():
    script = (
        CONNECT
        + """
import psutil
meeting.exchange("started", "", 30)
sockets = [c for c in psutil.Process().net_connections() if c.status == "LISTEN"]
listening = [c.laddr.ip.removeprefix("::ffff:") for c in sockets]
print("RESULT", json.dumps([listening, meeting.listen_address]))
meeting.exchange("looked", "", 30)
"""
    )
    for rank, (code, output) in enumerate(run_ranks(2, script)):
        assert code == 0, output
        assert result(output) == [["127.0.0.1"] if rank == 0 else [], "127.0.0.1"]


def test_tf_config_and_virtual_nodes():
    script = (
        CONNECT
        + """
node = meeting.nodes[meeting.rank]
places = [meeting.rank, meeting.world_size, node.node_rank, node.num_nodes,
          node.local_rank, node.local_size]
print("RESULT", json.dumps(places))
meeting.exchange("end", "", 30)
"""
    )
    addresses = [f"localhost:{free_port()}", "localhost:2", "localhost:3"]

    def variables(rank):
        task = {"type": "worker", "index": rank}
        return {
            "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task}),
            "TFDEAR_NODE_RANK": str((0, 1, 0)[rank]),
        }

    with Ranks(3, script, variables, launcher=False) as ranks:
        assert ranks.wait() == [0, 0, 0], ranks.output(0)
        places = [result(ranks.output(rank)) for rank in range(3)]
    assert places == [[0, 3, 0, 2, 0, 2], [1, 3, 1, 2, 0, 1], [2, 3, 0, 2, 1, 2]]


@pytest.mark.parametrize(
    "variables, words",
    [
        ({1: {"VERSION": "9"}}, "tfdear: 1 on ranks 0, 2; 9 on rank 1."),
        ({0: {"BACKEND": "nccl"}}, "backend: nccl on rank 0; gloo on ranks 1, 2."),
        ({2: {"TFDEAR_WORLD_SIZE": "4"}}, "world size: 3 on ranks 0, 1; 4 on rank 2."),
    ],
)
def test_every_rank_refuses_a_mismatch(variables, words):
    for code, output in run_ranks(3, CONNECT, lambda rank: variables.get(rank, {})):
        assert code == 1
        assert words in output


@pytest.mark.parametrize("missing", [0, 2])
def test_missing_rank_is_named(missing):
    # The rank that does not come leaves before it meets anybody.
    script = f"import os\nif os.environ['TFDEAR_RANK'] == '{missing}': os._exit(0)\n" + CONNECT
    results = run_ranks(3, script, {"TIMEOUT": "8"})
    for rank, (code, output) in enumerate(results):
        if rank == missing:
            continue
        assert code == 1, output
        assert "did not come together within 8 s" in output
        if missing == 0:
            assert "could not reach rank 0 at 127.0.0.1:" in output
        else:
            assert "Ranks that came: 0, 1; missing: 2." in output


def test_two_processes_with_one_rank():
    def variables(rank):  # rank 2 is never started, so that the others cannot be done before
        return {"TFDEAR_RANK": str(min(rank, 1))}

    for code, output in run_ranks(3, CONNECT, variables):
        assert code == 1
        assert "two processes claim rank 1 of the job at 127.0.0.1:" in output


def test_late_process_does_not_disturb_the_job(tmp_path):
    script = (
        CONNECT
        + """
import time
print("connected", flush=True)
while not os.path.exists(os.environ["DONE"]):
    time.sleep(0.1)
meeting.exchange("end", "", 30)
"""
    )
    done = tmp_path / "done"
    with Ranks(2, script, {"DONE": str(done)}) as job:
        for rank in range(2):
            job.wait_for_output(rank, "connected", 60)
        late = {
            "TFDEAR_RANK": "1",
            "TFDEAR_WORLD_SIZE": "2",
            "TFDEAR_COORDINATOR": job.coordinator,
            "DONE": str(done),
        }
        with Ranks(1, script, late, launcher=False) as latecomer:
            assert latecomer.wait() == [1]
            assert "two processes claim rank 1" in latecomer.output(0)
        done.touch()
        assert job.wait() == [0, 0], job.output(0)


def test_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        variables = {
            "TFDEAR_RANK": "0",
            "TFDEAR_WORLD_SIZE": "2",
            "TFDEAR_COORDINATOR": address,
        }
        with Ranks(1, CONNECT, variables, launcher=False) as ranks:
            assert ranks.wait() == [1]
            assert f"cannot listen on {address}" in ranks.output(0)
            assert "Address already in use" in ranks.output(0)
            assert "sport = :" in ranks.output(0)


def test_tensorflow_may_be_in_use_already():
    script = "import tensorflow as tf\nprint(tf.constant(1.0))\n" + CONNECT
    for code, output in run_ranks(2, script):
        assert code == 0, output


def test_ranks_with_different_secrets_say_so():
    def variables(rank):
        return {"TFDEAR_SECRET": str(rank) * 32} if rank < 2 else {"TFDEAR_INSECURE": "1"}

    with Ranks(3, CONNECT, variables) as ranks:
        assert ranks.wait([1, 2], timeout=120) == [1, 1]
        for rank, other, own in (
            (1, "another secret", "TFDEAR_SECRET, finger"),
            (2, "a secret", ""),
        ):
            output = ranks.output(rank)
            assert f"rank {rank} (host" in output and f"that one has {other}; of" in output
            assert own in output and str(rank) * 32 not in output


def test_sigterm_still_ends_a_rank():
    script = (
        CONNECT
        + """
import time
print("connected", flush=True)
time.sleep(100)
"""
    )
    with Ranks(2, script) as ranks:
        for rank in range(2):
            ranks.wait_for_output(rank, "connected", 60)
        for process in ranks.processes:
            process.terminate()
        assert ranks.wait(timeout=20) == [-15, -15]
