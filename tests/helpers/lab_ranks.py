# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ranks of a job, each on a node of a lab of network namespaces."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping

from tfdear.benchmarks import lab as netlab

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
_PORT = 7100


def run(
    lab: netlab.Lab,
    job: pathlib.Path,
    arguments: list[str],
    logs: pathlib.Path,
    variables: Mapping[str, str],
    timeout: float,
) -> None:
    """Runs a job with a rank on every node; it gets the device of its node as the first argument.

    A node that the lab has several times (`Lab.with_ranks`) has as many ranks.

    Fails if a rank ends with another code than 0, or not in time; ends all that it started.
    """
    with started(lab, job, arguments, logs, variables) as processes:
        codes = [process.wait(timeout) for process in processes]
    text = "\n".join(log_of(logs, rank) for rank in range(len(processes)))
    assert codes == [0] * len(processes), text[-6000:]


@contextlib.contextmanager
def started(
    lab: netlab.Lab,
    job: pathlib.Path,
    arguments: list[str],
    logs: pathlib.Path,
    variables: Mapping[str, str],
) -> Iterator[list[subprocess.Popen]]:
    """The processes of such a job, which end with the `with` statement at the latest."""
    workers = [f"{node.address}:{_PORT + rank}" for rank, node in enumerate(lab.nodes)]
    namespaces = list(dict.fromkeys(node.namespace for node in lab.nodes))
    processes: list[subprocess.Popen] = []
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
                "TFDEAR_NODE_RANK": str(namespaces.index(node.namespace)),
                **variables,
            }
            with open(_log(logs, rank), "wb") as log:
                processes.append(
                    subprocess.Popen(
                        node.command([sys.executable, str(job), node.device, *arguments]),
                        env=environment,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)


def log_of(logs: pathlib.Path, rank: int) -> str:
    """What a rank has printed."""
    return _log(logs, rank).read_text()


def _log(logs: pathlib.Path, rank: int) -> pathlib.Path:
    return logs / f"log.{rank}"
