# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""`tfdear doctor`: what tfdear finds on this machine, and whether it works.

Every check says what to do when it fails; the later ones run all the same.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import tfdear
from tfdear.commands.doctor import facts
from tfdear.rendezvous import cluster, secret

_LOADING_SECONDS = 120.0
# Exit code of a process that did not end in time.
_TIMED_OUT = 124
# Variables that would put a rank of the self-test into another job.
_NOT_INHERITED = ("TFDEAR_", "SLURM_", "OMPI_", "TF_CONFIG", "MASTER_", "RANK", "WORLD_SIZE")


@dataclasses.dataclass(frozen=True)
class Check:
    """The result of one check."""

    name: str
    passed: bool
    text: str  # What was found.
    remedy: str = ""  # What to do if it did not pass.

    def __str__(self) -> str:
        lines = [f"[{'ok' if self.passed else 'FAILED'}] {self.name}: {self.text}"]
        if not self.passed and self.remedy:
            lines.append(textwrap.indent(f"What to do: {self.remedy}", "    "))
        return "\n".join(lines)


def run(self_test: bool = True, timeout: float = 120.0) -> int:
    """Prints what is found and checks it, with `self_test` also in a job of two ranks.

    That job may take `timeout` seconds. Returns 0 when every check passed, else 1.
    """
    for title, describe in (
        ("Versions", facts.describe_versions),
        ("Build", facts.describe_build),
        ("Machine", facts.describe_machine),
        ("Network interfaces", facts.describe_interfaces),
        ("Security", facts.describe_secret),
        ("Environment", facts.describe_environment),
    ):
        print(f"{title}\n{textwrap.indent(_described(describe), '    ')}\n", flush=True)
    checks: list[Callable[[], Check]] = [
        check_packages,
        check_library,
        check_backend,
        check_loopback,
        check_environment,
    ]
    if self_test:
        checks.append(lambda: check_two_ranks(timeout))
    print("Checks", flush=True)
    failed = 0
    for check in checks:
        result = check()
        failed += not result.passed
        print(textwrap.indent(str(result), "    "), flush=True)
    print(f"\n{failed} of {len(checks)} checks failed." if failed else "\nAll checks passed.")
    return 1 if failed else 0


def check_packages() -> Check:
    """Whether everything that tfdear needs is installed."""
    missing = [name for name in facts.PACKAGES if facts.version(name) is None]
    if missing:
        remedy = f"{sys.executable} -m pip install {' '.join(missing)}"
        return Check("packages", False, f"not installed: {', '.join(missing)}", remedy)
    return Check("packages", True, "all that tfdear needs are installed")


def check_library() -> Check:
    """Whether TensorFlow loads the custom-op library; in a process of its own."""
    code = "from tfdear.engine import library; library.load(); print(library.library_path())"
    result = _python(["-c", code], _LOADING_SECONDS)
    if result.returncode == 0:
        return Check("custom-op library", True, f"loads: {result.stdout.strip().splitlines()[-1]}")
    text = f"does not load (exit code {result.returncode})"
    # The error names the versions and the command to build the library again.
    printed = result.stderr.strip()
    _, found, message = printed.rpartition("ImportError: ")
    return Check("custom-op library", False, text, message if found else _last_lines(printed, 10))


def check_backend() -> Check:
    """Whether this build has a backend for collectives."""
    built = facts.build_info().get("BACKENDS")
    if built:
        return Check("backends", True, f"this build has {', '.join(built)}")
    remedy = "build it again: make install"
    return Check("backends", False, "this build has none, or does not say which", remedy)


def check_loopback() -> Check:
    """Whether two processes on this machine can talk to each other."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(5.0)
            with socket.create_connection(server.getsockname(), timeout=5.0) as client:
                accepted, _ = server.accept()
                with accepted:
                    client.sendall(b"tfdear")
                    accepted.settimeout(5.0)
                    if accepted.recv(6) != b"tfdear":
                        raise OSError("what arrived is not what was sent")
    except OSError as error:
        remedy = (
            "Ranks on one machine talk over 127.0.0.1. See that the interface `lo` is up (`ip link "
            "set lo up`) and that no firewall rule drops TCP on it."
        )
        return Check("loopback", False, f"no TCP connection to 127.0.0.1: {error}", remedy)
    return Check("loopback", True, "TCP over 127.0.0.1 works")


def check_environment(environ: Mapping[str, str] = os.environ) -> Check:
    """Whether the environment describes a valid job."""
    try:
        found = cluster.discover(environ=environ)
    except ValueError as error:
        remedy = "Correct the variable, or unset it to run one process."
        return Check("environment", False, str(error), remedy)
    text = f"here a script would be rank {found.rank} of {found.world_size} ({found.source})"
    if found.world_size > 1:
        try:
            secret.find(environ)
        except ValueError as error:
            remedy = "Give all ranks the same secret, in TFDEAR_SECRET or TFDEAR_SECRET_FILE."
            return Check("environment", False, f"{text}, but {error}", remedy)
    return Check("environment", True, text)


def check_two_ranks(timeout: float) -> Check:
    """Runs real collectives on two ranks, through the launcher, and checks the values."""
    program = "tfdear.commands.doctor.self_test"
    arguments = ["-m", "tfdear", "run", "-n", "2", "--no-prefix", "-m", program]
    result = _python(arguments, timeout)
    lines = [line for line in result.stdout.splitlines() if line.startswith(("ok ", "FAILED "))]
    lines.sort(key=lambda line: line.split()[1:3])  # By rank.
    found = "\n" + textwrap.indent("\n".join(lines), "    ") if lines else ""
    if result.returncode == 0:
        return Check("two ranks", True, f"values are right{found}")
    name = f"failed with exit code {result.returncode}"
    if result.returncode == _TIMED_OUT:
        name = f"not done after {timeout:g} s"
    remedy = (
        "Read the last lines below. If the ranks did not find each other, look at the checks above "
        "and at firewalls; if values are wrong or a rank was killed by a signal, build the library "
        "again (`make install`); on a slow machine give more time: tfdear doctor --timeout 600."
    )
    tail = _last_lines(result.stderr, 30)
    return Check("two ranks", False, name + found, f"{remedy}\n{textwrap.indent(tail, '| ')}")


def _python(arguments: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
    """Runs this interpreter with this tfdear; never raises, and leaves nothing running."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith(_NOT_INHERITED)}
    # The package that is being examined, wherever it was imported from.
    package = str(Path(tfdear.__file__).resolve().parents[1])
    known = [package, environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, known))
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        cwd=package,  # Before all of that Python looks there, in a clone for its sources.
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    timed_out = False
    try:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            # The launcher ends its ranks and prints their last output.
            process.terminate()
            output, errors = process.communicate(timeout=30.0)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
    finally:
        if process.poll() is None:
            process.kill()
    code = _TIMED_OUT if timed_out else process.returncode
    return subprocess.CompletedProcess(arguments, code, output, errors)


def _described(describe: Callable[[], str]) -> str:
    try:
        return describe()
    except Exception as error:  # One part that cannot be described must not hide the others.
        return f"cannot be found out: {type(error).__name__}: {error}"


def _last_lines(text: str, count: int) -> str:
    return "\n".join(text.strip().splitlines()[-count:])
