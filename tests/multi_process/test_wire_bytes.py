# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The bytes that leave a rank are those of bandwidth-optimal algorithms, over so many connections
as it was told to use."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tfdear.benchmarks import lab as netlab

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
_CONNECTIONS = 16
_JOB = _REPOSITORY / "tests" / "multi_process" / "jobs" / "wire_bytes.py"


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(120)
@pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root")
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_collectives_send_no_more_than_they_must(world_size, tmp_path):
    with netlab.temporary(world_size, rate=None) as lab:
        workers = [f"{node.address}:7100" for node in lab.nodes]
        processes = []
        try:
            for rank, node in enumerate(lab.nodes):
                task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
                environment = {
                    **os.environ,
                    "PYTHONPATH": str(_REPOSITORY),
                    "TF_CONFIG": json.dumps(task),
                    "TF_NUM_INTRAOP_THREADS": "1",
                    "TF_NUM_INTEROP_THREADS": "2",
                    "TF_CPP_MIN_LOG_LEVEL": "1",
                    "TFDEAR_NODE_RANK": str(rank),
                    "TFDEAR_CONNECTIONS": str(_CONNECTIONS),
                }
                command = [sys.executable, str(_JOB), node.device, str(tmp_path / "sent.json")]
                with open(tmp_path / f"log.{rank}", "wb") as log:
                    processes.append(
                        subprocess.Popen(
                            node.command(command),
                            env=environment,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                        )
                    )
            codes = [process.wait(90) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(10)
        logs = "\n".join((tmp_path / f"log.{rank}").read_text() for rank in range(world_size))
        assert codes == [0] * world_size, logs[-6000:]
    share = (world_size - 1) / world_size
    bound = {"reduce_scatter": share, "all_gather": share, "all_reduce": 2 * share}
    for rank in range(world_size):
        sent = json.loads((tmp_path / f"sent.{rank}").read_text())
        # TensorFlow's, the monitor's and those of other groups are far fewer.
        assert 1 <= sent.pop("connections") / (_CONNECTIONS * (world_size - 1)) < 2
        print(world_size, rank, {name: round(sent[name] / bound[name], 4) for name in bound})
        for name, least in bound.items():
            assert least <= sent[name] <= 1.05 * least, (name, sent[name], least)
