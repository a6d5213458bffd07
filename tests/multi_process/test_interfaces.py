# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Data travel over the network interface that TFDEAR_INTERFACE names."""

import os
import subprocess

import lab_ranks
import pytest

from tfdear.benchmarks import lab as netlab

_JOB = """
import pathlib, sys
import tensorflow as tf
import tfdear

strategy = tfdear.DearStrategy()
total = strategy.all_reduce(tf.range(1000, dtype=tf.int64)).numpy()
assert (total == 2 * tf.range(1000, dtype=tf.int64).numpy()).all()
lines = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
ends = {line[1].split(":")[0] for line in lines if line[3] == "01"}  # Established: its address.
addresses = {".".join(str(int(end[i : i + 2], 16)) for i in (6, 4, 2, 0)) for end in ends}
pathlib.Path(sys.argv[2] + f".{strategy.rank}").write_text(" ".join(sorted(addresses)))
strategy.all_reduce(tf.constant(0))  # Neither ends before the other has looked.
"""


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(120)
@pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root")
def test_data_use_the_interface_that_is_named(tmp_path):
    job = tmp_path / "job.py"
    job.write_text(_JOB)
    with netlab.temporary(1, rate=None) as lab:
        (node,) = lab.nodes
        for command in (
            "link add second type veth peer name other",
            "addr add 10.77.0.1/24 dev second",
            "link set second up",
            "link set other up",
        ):
            subprocess.run(["ip", "-n", node.namespace, *command.split()], check=True)
        variables = {"TFDEAR_SHARED_MEMORY": "0", "TFDEAR_INTERFACE": "second"}
        arguments = [str(tmp_path / "addresses")]
        lab_ranks.run(lab.with_ranks(2), job, arguments, tmp_path, variables, timeout=100)
        for rank in range(2):
            found = (tmp_path / f"addresses.{rank}").read_text().split()
            assert "10.77.0.1" in found
