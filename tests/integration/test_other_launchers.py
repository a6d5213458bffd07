# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""torchrun, Open MPI and Slurm start one job of all their processes, also inside of each other."""

import contextlib
import getpass
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from ports import free_port

import tfdear

pytestmark = [pytest.mark.integration, pytest.mark.multi_process, pytest.mark.newest_only]

ROOT = pathlib.Path(tfdear.__file__).resolve().parents[1]
# Only ends a job that hangs.
DEADLINE = 120.0
NUM_RANKS = 2
JOB = """
import tensorflow as tf
import tfdear

strategy = tfdear.DearStrategy(init_timeout=60)
total = strategy.all_reduce(tf.constant([10**strategy.rank]))
resolver = strategy.cluster_resolver
task = (resolver.task_type, resolver.task_id, resolver.cluster_spec().num_tasks("worker"))
assert task == ("worker", strategy.rank, strategy.world_size), task
# In one write: the processes share a pipe.
place = f"rank {strategy.rank} of {strategy.world_size}, local {strategy.local_rank}"
print(f"{place}: sum {int(total[0])}\\n", end="", flush=True)
"""
# As much of it as needs no TensorFlow.
PLACE = """
from tfdear.rendezvous import cluster

found = cluster.discover()
place = f"rank {found.rank} of {found.world_size}, local {found.local_rank}"
print(f"{place}: sum 11\\n", end="", flush=True)
"""
# What the shell of a batch script has that asked Slurm for one task.
SLURM_BATCH = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "node1",
    "SLURM_NNODES": "1",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
PACKAGES = {
    "torchrun": "python3-torch",
    "mpirun": "openmpi-bin",
    "srun": "slurm-client",
    "sinfo": "slurm-client",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
}
# What CI may not bring from outside into a job, and what a root in a container needs.
FOREIGN = ("TFDEAR_", "SLURM_", "OMPI_", "PMIX_", "TF_CONFIG", "RANK", "WORLD_SIZE", "MASTER_")
MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def program(name):
    """The path of a launcher; its absence is a failure, not a reason to skip."""
    path = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"]))
    if path is None:
        pytest.fail(
            f"There is no {name}: `make test` installs it as root; else run: "
            f"sudo apt-get install --no-install-recommends {PACKAGES[name]}"
        )
    return path


def torchrun():
    # Its own interpreter need not be the one that has TensorFlow. PyTorch 1.13 under Python 3.11
    # does not know the default of the last two.
    flags = [
        "--no_python",
        f"--master_port={free_port()}",
        "--log_dir=logs",
        "--redirects=1",
        "--tee=1",
    ]
    return [program("torchrun"), f"--nproc_per_node={NUM_RANKS}", *flags]


def mpirun():
    return [program("mpirun"), "--oversubscribe", "-n", str(NUM_RANKS)]


def environment(**variables):
    plain = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), "1")
    path = os.pathsep.join(filter(None, [str(ROOT), plain.get("PYTHONPATH")]))
    return {**plain, **threads, **MPI_AS_ROOT, "PYTHONPATH": path, **variables}


def check_one_job(command, folder, job=JOB, **variables):
    """Runs the job; every rank must be there once, and all of them in one sum."""
    (folder / "job.py").write_text(job)
    process = subprocess.Popen(
        [*command, sys.executable, "job.py"],
        cwd=folder,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=DEADLINE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output[-6000:]
    found = re.findall(r"rank (\d) of (\d), local (\d): sum (\d+)", output)
    total = str(sum(10**rank for rank in range(NUM_RANKS)))
    expected = [(str(rank), str(NUM_RANKS), str(rank), total) for rank in range(NUM_RANKS)]
    assert sorted(found) == expected, output[-6000:]


@pytest.mark.parametrize(
    "launcher, variables",
    [
        pytest.param(torchrun, {}, id="torchrun-alone"),
        pytest.param(
            mpirun, SLURM_BATCH, marks=pytest.mark.newest_only, id="mpirun-in a batch script"
        ),
        pytest.param(mpirun, {}, marks=pytest.mark.long, id="mpirun-alone"),
        pytest.param(
            torchrun, SLURM_BATCH, marks=pytest.mark.long, id="torchrun-in a batch script"
        ),
    ],
)
def test_one_job(launcher, variables, tmp_path):
    check_one_job(launcher(), tmp_path, **variables)


SLURM_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
SlurmdParameters=config_overrides
AuthType=auth/none
CredType=cred/none
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs=4
PartitionName=all Nodes=ALL Default=YES
"""


@pytest.fixture
def slurm(tmp_path):
    """Slurm on this machine alone, for this test alone; yields the variable that leads to it."""
    programs = [program(name) for name in ("slurmctld", "slurmd")]
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        SLURM_CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            user=getpass.getuser(),
            folder=folder,
            controller_port=free_port(),
            node_port=free_port(),
        )
    )
    variables = {"SLURM_CONF": str(configuration)}
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        for path in programs:
            process = subprocess.Popen(
                [path, "-D"], env=environment(**variables), stdout=log, stderr=log
            )
            stack.callback(process.wait, 120)
            stack.callback(process.terminate)
        end = time.monotonic() + 120
        while (
            "idle"
            not in subprocess.run(
                [program("sinfo")], env=environment(**variables), capture_output=True, text=True
            ).stdout
        ):
            assert time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.1)
        yield variables


def test_slurm_starts_one_job(slurm, tmp_path):
    check_one_job([program("srun"), "-n", str(NUM_RANKS)], tmp_path, **slurm)


@pytest.mark.newest_only
def test_torchrun_in_a_real_allocation(slurm, tmp_path):
    check_one_job([program("srun"), "-n", "1", *torchrun()], tmp_path, PLACE, **slurm)
