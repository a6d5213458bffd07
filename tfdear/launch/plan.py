# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What `tfdear run` starts: the command, and the environment of every rank."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import os
import pathlib
import random
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence

from tfdear.rendezvous import rank_environment, secret

# Above Linux's usual range of ephemeral ports (32768 to 60999), so that no outgoing connection
# takes the port between the time it is chosen and the time rank 0 listens there.
_FIRST_PORT = 61440
_LAST_PORT = 65535

_THREAD_VARIABLES = {
    "OMP_NUM_THREADS": 1,
    "TF_NUM_INTRAOP_THREADS": 1,
    # With one inter-op thread a step's input pipeline would wait for its kernels.
    "TF_NUM_INTEROP_THREADS": 2,
}

# Tensors come and go in every step, and the kernel clears and maps what large ones take page by
# page: 512 times less often with pages of 2 MiB. The C library reads this when a process starts.
LARGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


class LaunchError(ValueError):
    """Nothing was started, because the request is invalid; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class LaunchPlan:
    """What to start, and where its output goes. Raises LaunchError for a value out of range."""

    command: Sequence[str]  # Program and arguments, the same for every rank; see `make_command`.
    num_ranks: int
    num_nodes: int = 1  # Played by this machine, with equal, contiguous blocks of ranks.
    log_dir: str | None = None  # Folder for one file per rank, created or overwritten.
    prefix: bool = True  # Whether `[rank <n>] ` stands before the lines of other ranks than 0.
    show: frozenset[int] | None = None  # None: all; with `log_dir`, rank 0 alone.
    # Seconds that the others have, after the first failure, to end with an error of their own.
    grace: float = 15.0
    kill_after: float = 5.0  # Seconds between the signal that asks a rank to end, and SIGKILL.
    # By which the ranks know each other, where the user has not given one: no two jobs have the
    # same.
    job_secret: str = dataclasses.field(default_factory=secret.new, repr=False)

    def __post_init__(self) -> None:
        if self.num_ranks < 1:
            raise LaunchError(
                f"the number of ranks (-n) must be at least 1. Received: {self.num_ranks}"
            )
        if self.num_nodes < 1 or self.num_ranks % self.num_nodes:
            raise LaunchError(
                f"{self.num_ranks} ranks cannot be spread evenly over {self.num_nodes} nodes. Give "
                "a number of ranks (-n) that is a multiple of the number of nodes (--nodes)."
            )
        unknown = sorted(rank for rank in self.show or () if not 0 <= rank < self.num_ranks)
        if unknown:
            raise LaunchError(
                f"there is no rank {unknown[0]} to show: the ranks are 0 to {self.num_ranks - 1}."
            )
        for name in ("grace", "kill_after"):
            seconds = getattr(self, name)
            if not 0 <= seconds < math.inf:
                raise LaunchError(
                    f"{name} must be a number of seconds, 0 or more. Received: {name}={seconds}"
                )

    def is_shown(self, rank: int) -> bool:
        """Whether the output of this rank goes to the terminal."""
        if self.show is not None:
            return rank in self.show
        return self.log_dir is None or rank == 0

    def node_of(self, rank: int) -> int:
        """Number of the node that this rank is on."""
        return rank // (self.num_ranks // self.num_nodes)

    def environment(
        self, environ: Mapping[str, str], rank: int, coordinator: str, cores: int
    ) -> dict[str, str]:
        """The environment variables of one rank, from those of the launcher.

        What those set for threads, memory and TensorFlow's log is kept. All ranks share the
        `cores`.
        """
        result = {**LARGE_PAGES, **environ}
        result.pop("TF_CONFIG", None)
        if not any(result.get(name) for name in secret.VARIABLES):
            result[secret.TEXT_VARIABLE] = self.job_secret
        # Rank 0's warnings stand for those of all.
        result.setdefault("TF_CPP_MIN_LOG_LEVEL", "1" if rank == 0 else "2")
        if self.num_ranks > 1:
            # Otherwise every rank starts a thread per core, and all of them compete for the cores.
            for name, least in _THREAD_VARIABLES.items():
                result.setdefault(name, str(max(least, cores // self.num_ranks)))
        node_of_rank = [self.node_of(each) for each in range(self.num_ranks)]
        return result | rank_environment.variables(rank, node_of_rank, coordinator)


def make_command(target: str, arguments: Sequence[str] = (), module: bool = False) -> list[str]:
    """Finds out how to start what the user named, before anything is started.

    That is a `.py` file, a folder with `__main__.py`, or any executable; with `module`, the name of
    a Python module. Python code runs in this interpreter. Raises LaunchError where there is none.
    """
    # Unbuffered, so that what a rank printed before it was killed is not lost.
    python = [sys.executable, "-u"]
    here = os.getcwd()
    if module:
        if not _module_exists(target.partition(".")[0]):
            raise LaunchError(
                f"{sys.executable} finds no module {target!r}, neither in {here} nor installed."
            )
        return [*python, "-m", target, *arguments]
    path = pathlib.Path(target)
    if (path.is_dir() and (path / "__main__.py").exists()) or (
        path.suffix in (".py", ".pyz", ".pyc") and path.is_file()
    ):
        return [*python, target, *arguments]
    if path.is_dir():
        raise LaunchError(f"{target} is a folder without __main__.py. Name a script in it.")
    if path.suffix == ".py":
        raise LaunchError(f"there is no script {target} in {here}.")
    program = shutil.which(target)
    if program is not None:
        return [program, *arguments]
    if path.is_file():
        raise LaunchError(
            f"{target} is neither a .py file nor executable. Rename it, or run: chmod +x {target}"
        )
    raise LaunchError(
        f"there is no {target} in {here}, and no program of this name on PATH. To run a module, "
        f"put -m in front of it: tfdear run -n ... -m {target}"
    )


def free_port() -> int:
    """Chooses a free port of this machine, above the usual ephemeral range if possible."""
    # At random, so that two jobs that start at the same time do not choose the same one.
    candidates = random.SystemRandom().sample(range(_FIRST_PORT, _LAST_PORT + 1), 64)
    for port in [*candidates, 0]:
        # On all interfaces: a port that is free on loopback alone may not be enough.
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise LaunchError("no TCP port is free on this machine.")


def available_cores(cgroup: str = "/sys/fs/cgroup") -> int:
    """Number of cores that this process may use; fewer if a container's quota allows less time."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = pathlib.Path(cgroup, "cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass  # No control groups, or the older version of them, which containers rarely have.
    return max(1, cores)


def _module_exists(name: str) -> bool:
    # The ranks search the current folder first.
    path = sys.path
    sys.path = ["", *path]
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
    finally:
        sys.path = path
