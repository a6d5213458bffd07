# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Runs a script as the ranks of a job, in real processes, and never leaves one behind."""

from __future__ import annotations

import functools
import os
import pathlib
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping

from fork_server import ForkedProcess, ForkServer
from ports import free_port

from tfdear.rendezvous import rank_environment, secret

_SECRET = secret.new()  # Of all jobs here: some meet a process that is not of their own.
_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


class Ranks:
    """The processes of one job. Use it in a `with` statement, which ends what still runs.

    Args:
        world_size: number of processes.
        script: Python source, or the path of a script.
        env: variables for every rank; a function of the rank gives each its own.
        arguments: of the script.
        launcher: set the variables of the tfdear launcher.
    """

    def __init__(
        self,
        world_size: int,
        script: str | pathlib.Path,
        env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
        arguments: tuple[str, ...] = (),
        launcher: bool = True,
    ):
        self._directory = tempfile.TemporaryDirectory(prefix="tfdear-ranks-")
        directory = pathlib.Path(self._directory.name)
        if isinstance(script, str) and ("\n" in script or not script.endswith(".py")):
            path = directory / "script.py"
            path.write_text(textwrap.dedent(script))
        else:
            path = pathlib.Path(script)
        self.port = free_port()
        self.coordinator = f"127.0.0.1:{self.port}"
        self._outputs = [directory / f"rank_{rank}.txt" for rank in range(world_size)]
        self.processes: list[ForkedProcess] = []
        for rank in range(world_size):
            variables = dict(_plain_environment())
            if launcher:
                variables |= rank_environment.variables(rank, [0] * world_size, self.coordinator)
            own = env(rank) if callable(env) else env
            variables.update(own or {})
            self._outputs[rank].touch()
            self.processes.append(
                _fork_server().start(path, arguments, variables, self._outputs[rank])
            )

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            # The whole session: a rank may have started processes of its own.
            process.kill_session()
            process.wait(60)
        self._directory.cleanup()

    def output(self, rank: int) -> str:
        """What a rank has printed so far, stdout and stderr."""
        return self._outputs[rank].read_text(errors="replace")

    def wait_for_output(self, rank: int, text: str, timeout: float) -> None:
        """Waits until a rank has printed `text`."""
        self._until(lambda: text in self.output(rank), f"{text!r} from rank {rank}", timeout)

    def wait(self, ranks: list[int] | None = None, timeout: float = 120.0) -> list[int]:
        """Waits until these ranks (default: all) have ended; returns their exit codes."""
        chosen = range(len(self.processes)) if ranks is None else ranks
        waited = [self.processes[rank] for rank in chosen]
        self._until(
            lambda: all(process.poll() is not None for process in waited),
            f"the end of ranks {ranks if ranks is not None else 'all'}",
            timeout,
            watch=False,
        )
        return [process.returncode for process in waited]

    def _until(
        self, done: Callable[[], bool], what: str, timeout: float, watch: bool = True
    ) -> None:
        end = time.monotonic() + timeout
        while not done():
            everything_ended = watch and all(p.poll() is not None for p in self.processes)
            if time.monotonic() > end or (everything_ended and not done()):
                codes = [process.poll() for process in self.processes]
                stands = [process.where_it_stands() for process in self.processes]
                outputs = "\n".join(
                    f"--- rank {rank}:\n{self.output(rank)[-4000:]}\n{stands[rank]}"
                    for rank in range(len(self.processes))
                )
                raise AssertionError(
                    f"waited for {what} (at most {timeout:g} s); exit codes {codes}\n{outputs}"
                )
            time.sleep(0.05)


def run_ranks(
    world_size: int,
    script: str | pathlib.Path,
    env: Mapping[str, str] | Callable[[int], Mapping[str, str]] | None = None,
    timeout: float = 120.0,
    arguments: tuple[str, ...] = (),
) -> list[tuple[int, str]]:
    """Runs a script as a job and returns every rank's exit code and output.

    Args:
        world_size: number of processes.
        script: Python source, or the path of a script.
        env: variables for every rank, or a function of the rank.
        timeout: seconds after which the test fails and everything is killed.
        arguments: of the script.

    Returns:
        (exit code, stdout and stderr) per rank.
    """
    with Ranks(world_size, script, env, arguments) as ranks:
        codes = ranks.wait(timeout=timeout)
        return [(code, ranks.output(rank)) for rank, code in enumerate(codes)]


@functools.cache
def _fork_server() -> ForkServer:
    """One for all tests; it ends with this process, when its connection closes."""
    return ForkServer(_plain_environment())


def _plain_environment() -> dict[str, str]:
    """This process's environment without traces of a job, and with few threads."""
    foreign = ("TFDEAR_", "SLURM_", "OMPI_", "TF_CONFIG")
    variables = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    path = os.pathsep.join(filter(None, (str(_REPOSITORY), variables.get("PYTHONPATH"))))
    variables.update(
        PYTHONPATH=path,
        TFDEAR_SECRET=_SECRET,
        CUDA_VISIBLE_DEVICES="",
        OMP_NUM_THREADS="1",
        TF_NUM_INTRAOP_THREADS="1",
        TF_NUM_INTEROP_THREADS="2",
    )
    variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    return variables
