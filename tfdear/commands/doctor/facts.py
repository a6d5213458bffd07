# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What tfdear runs on: versions, build, machine, network, environment. For people to read."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tfdear
from tfdear.base import extras
from tfdear.benchmarks.table import table
from tfdear.engine import build_check
from tfdear.launch.plan import available_cores
from tfdear.rendezvous import data_encryption, secret

PACKAGES = ("tensorflow", "keras", "numpy", "scikit-optimize", "grpcio", "cryptography")
_OPTIONAL_PACKAGES = ("matplotlib", "psutil", "tf-keras", "tensorflow-text", "tf-models-official")
# All backends of the project; BACKENDS lists those of a build.
_BACKENDS = ("tcp", "gloo", "nccl", "mpi")
_VARIABLES = ("TF_CONFIG", "CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE", "MASTER_ADDR")
_VARIABLE_PREFIXES = ("TFDEAR_", "SLURM_", "OMPI_COMM_", "OMP_", "TF_NUM_", "GRPC_", "GLOO_")


def describe_versions() -> str:
    """Versions of tfdear, Python and the packages it works with."""
    rows = [("tfdear", f"{tfdear.__version__} ({Path(tfdear.__file__).parent})")]
    rows.append(("Python", f"{platform.python_version()} ({sys.executable})"))
    rows += [(name, version(name) or "not installed") for name in PACKAGES]
    rows += [(name, f"{version(name)}") for name in _OPTIONAL_PACKAGES if version(name)]
    return table(rows, num_left=2)


def describe_build() -> str:
    """What the custom-op library was built with, and which backends it has."""
    info = build_info()
    if not info:
        return "There is no library for the installed TensorFlow; the checks below say more."
    rows = [(name.lower(), str(value)) for name, value in info.items()]
    rows += [(f"backend {name}", text) for name, text in backends(info).items()]
    return table(rows, num_left=2)


def describe_machine() -> str:
    """Operating system, cores and memory."""
    with open("/proc/meminfo") as file:
        kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in file}
    available, total = kibibytes["MemAvailable"] / 2**20, kibibytes["MemTotal"] / 2**20
    shared = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0
    rows = [
        ("node", socket.gethostname()),
        ("system", platform.platform()),
        ("cores", f"{available_cores()} usable of {os.cpu_count()}"),
        ("memory", f"{available:.1f} of {total:.1f} GiB free"),
        ("/dev/shm", f"{shared / 2**30:.1f} GiB free"),
    ]
    return table(rows, num_left=2)


def describe_interfaces() -> str:
    """Network interfaces that have an address, with their state."""
    with extras.required("doctor"):  # Here, so that the other facts are told where it is missing.
        import psutil

    states = psutil.net_if_stats()
    rows = []
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        numbers = [a.address for a in addresses if a.family in (socket.AF_INET, socket.AF_INET6)]
        state = states.get(name)
        if numbers and state is not None:
            # Virtual interfaces report no speed.
            speed = f", {state.speed} Mbit/s" if state.speed else ""
            text = f"{'up' if state.isup else 'DOWN'}, MTU {state.mtu}{speed}: "
            rows.append((name, text + ", ".join(numbers)))
    return table(rows, num_left=2) or "none"


def describe_secret(environ: Mapping[str, str] = os.environ) -> str:
    """By which secret ranks that start here know each other, and whom they meet how."""
    try:
        found = secret.find(environ)
    except ValueError as error:
        return f"none: {error}"
    if found is None:
        return "none (TFDEAR_INSECURE=1): whoever reaches rank 0's port can take part in a job"
    rows = [
        ("secret", f"{found}"),
        ("under tfdear run", "another one for each job, unless a variable names one"),
        ("where ranks meet", "mutual TLS"),
        ("data", _encryption(environ)),
        ("ports", "rank 0's, all the time, which the launcher or TF_CONFIG chooses"),
        ("", "one of every rank, any free one, while the job starts"),
        ("", "with a cache of several nodes, or tables of layers, one more while it runs"),
    ]
    return table(rows, num_left=2)


def _encryption(environ: Mapping[str, str]) -> str:
    try:
        is_on = data_encryption.is_on(environ)
    except ValueError as error:
        return str(error)
    return "TLS" if is_on else f"not encrypted ({data_encryption.VARIABLE}=1: TLS)"


def describe_environment(environ: Mapping[str, str] = os.environ) -> str:
    """Variables that decide which job a process belongs to, or how fast it is."""
    rows = [
        (name, "set" if name == secret.TEXT_VARIABLE else value)
        for name, value in sorted(environ.items())
        if name in _VARIABLES or name.startswith(_VARIABLE_PREFIXES)
    ]
    return table(rows, num_left=2) or "none of the variables that matter is set"


def version(package: str) -> str | None:
    """The version of an installed package; None when it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def build_info() -> dict[str, Any]:
    """What the library for the installed TensorFlow was built with; empty if there is none."""
    installed = build_check.installed_tensorflow()
    return {} if installed is None else build_check.build_info(installed)


def backends(info: Mapping[str, object]) -> dict[str, str]:
    """Whether a build has each backend, as text by its name; `info` is that of `build_info`."""
    built = info.get("BACKENDS", ())
    names = [str(name) for name in built] if isinstance(built, (list, tuple)) else []
    known = [*_BACKENDS, *(name for name in names if name not in _BACKENDS)]
    return {name: "built in" if name in names else "not in this build" for name in known}
