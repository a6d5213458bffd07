# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The ranks of one framework, one per node of a lab, which answer calls until they are closed."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from tfdear.benchmarks.lab import Lab
from tfdear.launch.plan import LARGE_PAGES

_PROGRAM = pathlib.Path(__file__).parent / "ranks" / "main.py"
_PACKAGE_PARENT = str(pathlib.Path(__file__).parents[2])
_START_SECONDS = 120.0
_END_SECONDS = 10.0
# Horovod's background thread polls every millisecond: a third of a core per rank.
_BUSY_WHEN_IDLE = ("with_horovod",)
_FOREIGN_VARIABLES = ("TFDEAR_", "SLURM_", "OMPI_", "HOROVOD_", "TF_CONFIG", "PYTHON")


class BenchmarkError(RuntimeError):
    """A benchmark cannot continue; the message says why and shows what the rank printed."""


class Group:
    """Processes of one framework, one per node. Use it in a `with` statement, which ends them.

    They load a module in `ranks/`, such as "with_torch", in an interpreter that has the framework.
    With `pin`, every rank gets one core of its own, as long as there are enough.
    """

    def __init__(
        self,
        framework: str,
        python: str,
        lab: Lab,
        pin: bool = True,
        variables: Mapping[str, str] | None = None,
    ):
        self.framework = framework
        self.lab = lab
        self._files = contextlib.ExitStack()
        self._processes: list[subprocess.Popen] = []
        self._pending: list[bytes] = [b""] * len(lab.nodes)
        directory = pathlib.Path(
            self._files.enter_context(tempfile.TemporaryDirectory(prefix="tfdear-benchmark-"))
        )
        self._logs = [directory / f"rank_{rank}.log" for rank in range(len(lab.nodes))]
        try:
            for node, path in zip(lab.nodes, self._logs, strict=True):
                with open(path, "wb") as log:
                    self._processes.append(
                        subprocess.Popen(
                            node.command([python, "-u", str(_PROGRAM), framework]),
                            env=_environment(python, variables or {}),
                            stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE,
                            stderr=log,
                            start_new_session=True,
                        )
                    )
            self.description = self._start(pin)
        except BaseException:
            self.close()
            raise

    def _start(self, pin: bool) -> str:
        cores = sorted(os.sched_getaffinity(0))
        ranks = range(len(self._processes))
        own_cores = [{"cores": [cores[rank % len(cores)]] if pin else []} for rank in ranks]
        self._call_each("load", own_cores, _START_SECONDS)
        hostnames = [node.hostname for node in self.lab.nodes]
        self._signal(signal.SIGCONT)
        self._send(0, "prepare", {"hostnames": hostnames})
        prepared = self._receive(0, "prepare", time.monotonic() + _START_SECONDS)
        addresses = [node.address for node in self.lab.nodes]
        common = {"addresses": addresses, "hostnames": hostnames, "prepared": prepared}
        each = [{"rank": rank, **common} for rank in ranks]
        return self._call_each("start", each, _START_SECONDS)[0]

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            # The whole session: a rank may have started processes of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(_END_SECONDS)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        self._files.close()

    def processor_seconds(self) -> float:
        """Returns the processor time that all ranks together have used so far."""
        ticks = 0
        for process in self._processes:
            # The name of the program, in parentheses, may hold blanks.
            fields = (
                pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            )
            ticks += int(fields[11]) + int(fields[12])  # In user and in system mode.
        return ticks / os.sysconf("SC_CLK_TCK")

    def call(self, method: str, timeout: float, **arguments: Any) -> list[Any]:
        """Calls a function of the framework's module on all ranks at once; returns their answers.

        All must answer within `timeout` seconds. JSON must be able to represent the arguments.
        """
        return self._call_each(method, [arguments] * len(self._processes), timeout)

    def _call_each(self, method: str, arguments: list[dict], timeout: float) -> list[Any]:
        deadline = time.monotonic() + timeout
        self._signal(signal.SIGCONT)
        for rank, own in enumerate(arguments):
            self._send(rank, method, own)
        answers = [self._receive(rank, method, deadline) for rank in range(len(arguments))]
        self._signal(signal.SIGSTOP)
        return answers

    def _signal(self, number: signal.Signals) -> None:
        """Stops or continues the ranks of a framework that is not idle between calls.

        Only of such a framework: others have heartbeats, and would take a stopped rank for lost.
        """
        if self.framework in _BUSY_WHEN_IDLE:
            for process in self._processes:
                os.killpg(process.pid, number)

    def _send(self, rank: int, method: str, arguments: dict) -> None:
        stream = self._processes[rank].stdin
        assert stream is not None
        try:
            stream.write(json.dumps({"method": method, "arguments": arguments}).encode() + b"\n")
            stream.flush()
        except BrokenPipeError:
            raise self._error(rank, method, "has ended") from None

    def _receive(self, rank: int, method: str, deadline: float) -> Any:
        stream = self._processes[rank].stdout
        assert stream is not None
        while b"\n" not in self._pending[rank]:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                raise self._error(rank, method, "did not answer in time")
            data = os.read(stream.fileno(), 1 << 20)
            if not data:
                raise self._error(rank, method, "has ended")
            self._pending[rank] += data
        line, _, self._pending[rank] = self._pending[rank].partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise self._error(rank, method, f"failed:\n{answer['error']}")
        return answer["result"]

    def _error(self, rank: int, method: str, what: str) -> BenchmarkError:
        printed = self._logs[rank].read_text(errors="replace")[-2000:]
        return BenchmarkError(
            f"rank {rank} of {self.framework} {what} (call: {method}). It printed:\n{printed}"
        )


def _environment(python: str, more: Mapping[str, str]) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN_VARIABLES)}
    variables = {**LARGE_PAGES, **own}
    variables.update(
        CUDA_VISIBLE_DEVICES="",
        OMP_NUM_THREADS="1",
        TF_NUM_INTRAOP_THREADS="1",
        TF_NUM_INTEROP_THREADS="2",
        TF_CPP_MIN_LOG_LEVEL="1",
    )
    if python == sys.executable:
        # So that tfdear can be measured from its source tree without being installed.
        variables["PYTHONPATH"] = _PACKAGE_PARENT
    variables.update(more)
    return variables
