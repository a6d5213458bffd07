# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What breaks in the middle of long messages is noticed by all ranks, and named."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import lab_ranks
import pytest
from ranks import Ranks

from tfdear.benchmarks import lab as netlab

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only]

_JOB = pathlib.Path(__file__).parent / "jobs" / "broken_line_job.py"
_RANKS, _HEARTBEAT = 3, 5
_RATE = "1gbit"  # A message of 64 MiB takes half a second.
_VARIABLES = {"TFDEAR_HEARTBEAT": str(_HEARTBEAT)}


def until_all_are_ready(folder, processes):
    end = time.monotonic() + 90
    while not all((folder / f"ready_{rank}").exists() for rank in range(_RANKS)):
        assert time.monotonic() < end, "not ready in time"
        assert all(process.poll() is None for process in processes)
        time.sleep(0.02)


def reports(folder, ranks):
    """When each of these ranks raised, and what."""
    return {rank: json.loads((folder / f"raised.{rank}").read_text()) for rank in ranks}


def kill_one(folder, seed):
    """Kills a rank at a random moment; how long the slowest of the others took to raise."""
    folder.mkdir()
    draw = random.Random(seed)
    victim = draw.randrange(_RANKS)
    variables = {**_VARIABLES, "TFDEAR_SHARED_MEMORY": "0"}
    with Ranks(_RANKS, _JOB, variables, ("loopback", str(folder))) as job:
        until_all_are_ready(folder, job.processes)
        time.sleep(0.2 + draw.random())
        killed = time.monotonic()
        job.processes[victim].send_signal(signal.SIGKILL)
        others = [rank for rank in range(_RANKS) if rank != victim]
        for rank, code in zip(others, job.wait(others, timeout=30), strict=True):
            assert code == 1, job.output(rank)
        pid = job.processes[victim].pid
    told = reports(folder, others)
    for report in told.values():
        assert re.search(rf"rank {victim} \(host \S+, pid {pid}\)", report["error"]), report
        assert "was lost: it was killed" in report["error"], report
    return max(report["time"] for report in told.values()) - killed


@pytest.mark.timeout(120)
def test_a_rank_that_is_killed_within_a_long_message_is_named(tmp_path):
    print(f"raised after {kill_one(tmp_path / 'job', 0):.2f} s")


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_hundred_ranks_that_are_killed_within_long_messages_are_named(tmp_path):
    seconds = sorted(kill_one(tmp_path / f"job_{number}", 1 + number) for number in range(100))
    print(f"raised after {seconds[50]:.2f} s, {seconds[99]:.2f} s at the most")


@pytest.mark.timeout(120)
@pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root")
@pytest.mark.parametrize("cut", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_cable_that_is_pulled_is_noticed_on_both_sides(tmp_path, cut):
    with (
        netlab.temporary(_RANKS, _RATE) as lab,
        lab_ranks.started(lab, _JOB, [str(tmp_path)], tmp_path, _VARIABLES) as processes,
    ):
        until_all_are_ready(tmp_path, processes)
        node = lab.nodes[cut]
        pulled = time.monotonic()
        command = ["ip", "-n", node.namespace, "link", "set", node.device, "down"]
        subprocess.run(command, check=True)
        for rank, process in enumerate(processes):
            assert process.wait(_HEARTBEAT + 30) != 0, lab_ranks.log_of(tmp_path, rank)
        told = reports(tmp_path, range(_RANKS))
    for rank, report in told.items():
        print(f"rank {rank} raised after {report['time'] - pulled:.2f} s: {report['error'][:200]}")
        missing = f"rank {cut} " if rank != cut else r"rank \d "
        assert re.search(missing + r"\(host \S+, pid \d+\)", report["error"]), report
        silence = "has not given a sign of life for|has not answered for|have not given a sign"
        assert re.search(silence, report["error"]), report
