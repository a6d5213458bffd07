# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Who this process is in the job, found without any network traffic.

Every source that describes a job (a cluster resolver, the tfdear launcher, TF_CONFIG, torchrun,
Open MPI, Slurm) is translated into one record, `Cluster`.

[Note: The innermost launcher]
Launchers run inside each other, and variables are inherited: a script that torchrun starts in a
Slurm allocation also has Slurm's, which describe the shell that called torchrun. So the innermost
launcher decides: `tfdear run`; then TF_CONFIG, which people write for each process; torchrun, which
also runs inside mpirun and srun; mpirun, which runs inside Slurm; Slurm.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

# Ports derived from a job id lie above Linux's ephemeral range (32768 to 60999), so that neither an
# outgoing connection nor a second job on the same machine is likely to hold them.
_FIRST_DERIVED_PORT = 61440
_NUM_DERIVED_PORTS = 4096
_TF_CONFIG = "TF_CONFIG"
_SLURM = "Slurm (SLURM_PROCID)"
_ALONE = "one process"
_LOOPBACK = "127.0.0.1"
# What systems call that interface.
_LOOPBACK_NAMES = frozenset(
    (
        "localhost",
        "localhost.localdomain",
        "localhost4",
        "localhost6",
        "ip6-localhost",
        "ip6-loopback",
    )
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """This process and the others of its job; what the environment does not tell is None."""

    rank: int  # Rank 0 is the chief; through it the ranks meet.
    world_size: int
    addresses: tuple[str, ...] | None = None  # "host:port" of every rank.
    chiefs: int = 0  # How many of these addresses, from the first, belong to the job "chief".
    coordinator: str = ""  # "host:port" where the ranks meet; "" for one process.
    local_rank: int | None = None  # Number of this rank among those of its node.
    local_size: int | None = None  # Number of ranks on the node.
    node_rank: int | None = None
    source: str = _ALONE  # Where the record comes from, for messages.

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ValueError(
                f"{self.source}: the world size must be at least 1. "
                f"Received: world_size={self.world_size}"
            )
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"{self.source}: the rank must be between 0 and {self.world_size - 1} (world size "
                f"{self.world_size}). Received: rank={self.rank}"
            )
        if self.world_size > 1:
            split_address(self.coordinator, f"{self.source}: coordinator")


def discover(cluster_resolver: Any = None, environ: Mapping[str, str] | None = None) -> Cluster:
    """Finds out who this process is, before anything uses the network.

    The first source that is present wins: the resolver, the tfdear launcher (TFDEAR_RANK, ...),
    TF_CONFIG, torchrun, Open MPI, Slurm; see [Note: The innermost launcher]. Without any of them
    the job is this one process. TFDEAR_COORDINATOR=host:port overrides the coordinator that
    torchrun, Open MPI and Slurm imply; TFDEAR_NODE_RANK overrides the node, so that one machine can
    play several. The text of a ValueError names the variables that are wrong or contradict each
    other.
    """
    environ = os.environ if environ is None else environ
    if cluster_resolver is not None:
        cluster = _from_resolver(cluster_resolver)
    else:
        cluster = _from_environment(environ)
    if "TFDEAR_NODE_RANK" in environ:
        node_rank = _integer(environ, "TFDEAR_NODE_RANK")
        cluster = dataclasses.replace(cluster, node_rank=node_rank)
    return cluster


def split_address(address: str, what: str) -> tuple[str, int]:
    """Splits "host:port" or "[IPv6]:port" into the host, without brackets, and a valid port.

    `what` names the variable that it comes from, for the ValueError.
    """
    named, _, port = address.rpartition(":")
    host = named.removeprefix("[").removesuffix("]")
    # Without brackets the last part of an address may be meant for its own.
    is_bare = ":" in host and named != f"[{host}]"
    if not host or is_bare or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(
            f"{what} must be host:port, or [IPv6 address]:port, with a port from 1 to 65535. "
            f"Received: {address!r}"
        )
    return host, int(port)


def is_loopback(host: str) -> bool:
    """True when `host` can only mean this machine ("localhost", 127.0.0.0/8, ::1)."""
    name = host.lower().removesuffix(".")
    if name in _LOOPBACK_NAMES or re.fullmatch(r"127(\.\d+){0,3}", name):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False  # A name, of which only a resolver knows what it stands for.


def _from_environment(environ: Mapping[str, str]) -> Cluster:
    found = (source(environ) for source in _SOURCES)
    cluster = next((c for c in found if c is not None), Cluster(0, 1))
    if cluster.source == _TF_CONFIG:
        for source in (_from_torchrun, _from_open_mpi):
            started = source(environ)
            if started is None or started.world_size == 1:
                continue
            # Platforms set TF_CONFIG for a whole container, not for each process in it.
            if (started.rank, started.world_size) != (cluster.rank, cluster.world_size):
                raise ValueError(
                    f"By TF_CONFIG this process is rank {cluster.rank} of {cluster.world_size}, by "
                    f"{started.source} it is rank {started.rank} of {started.world_size}. Unset "
                    "TF_CONFIG if the launcher decides who the ranks are; else start the script "
                    "without it."
                )
    elif cluster.source in (_ALONE, _SLURM):
        _check_for_other_mpi(environ, cluster.world_size)
    return cluster


def _check_for_other_mpi(environ: Mapping[str, str], world_size: int) -> None:
    """Raises where MPICH or its like started several processes: each would train alone.

    Their variables do not tell where ranks could meet. Slurm may set the same ones for its own.
    """
    size = environ.get("PMI_SIZE", "")
    if size.isdigit() and int(size) not in (1, world_size):
        raise ValueError(
            f"An MPI other than Open MPI has started {size} processes (PMI_SIZE), and does not "
            "tell where they meet. Say so: mpiexec -n ... sh -c 'TFDEAR_RANK=$PMI_RANK "
            "TFDEAR_WORLD_SIZE=$PMI_SIZE TFDEAR_COORDINATOR=host:port exec python train.py', where "
            "rank 0 runs on that host. If each is to train alone, unset PMI_SIZE."
        )


def _integer(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name)
    if text is None:
        raise ValueError(f"{name} is not set, but needed with the variables that are.")
    if not re.fullmatch(r"\s*\d+\s*", text):
        raise ValueError(
            f"{name} must be an integer that is not negative. Received: {name}={text!r}"
        )
    return int(text)


def _optional_integer(environ: Mapping[str, str], name: str) -> int | None:
    return _integer(environ, name) if name in environ else None


def _derived_port(job: str) -> int:
    return _FIRST_DERIVED_PORT + zlib.crc32(job.encode()) % _NUM_DERIVED_PORTS


def _meeting_host(host: str, local_size: int | None, world_size: int) -> str:
    """Where ranks meet whose launcher names a host: on the loopback interface if all are here.

    A machine's own name often means 127.0.1.1 to itself, for which rank 0 would have to listen on
    all interfaces: to others it may mean another address.
    """
    if local_size == world_size:
        return _LOOPBACK
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _from_jobs(jobs: Mapping[str, Any], task_type: Any, task_index: Any, source: str) -> Cluster:
    """The cluster whose ranks are the chief, if any, and then the workers."""
    addresses: list[str] = []
    first_rank = {}
    for job in ("chief", "worker"):
        tasks = jobs.get(job, [])
        if not isinstance(tasks, (list, tuple)) or not all(isinstance(t, str) for t in tasks):
            raise ValueError(
                f"{source}: job {job!r} must be a list of host:port. Received: {tasks!r}"
            )
        first_rank[job] = len(addresses)
        addresses += tasks
    if task_type not in ("chief", "worker"):
        raise ValueError(
            f"{source}: the task type must be 'worker' or 'chief': tfdear has no parameter servers "
            "and no evaluators. Start such a task without DearStrategy. "
            f"Received: type={task_type!r}"
        )
    size = len(jobs.get(task_type, []))
    if isinstance(task_index, bool) or not isinstance(task_index, (int, str)):
        raise ValueError(
            f"{source}: the task index must be an integer. Received: index={task_index!r}"
        )
    if not str(task_index).isdigit() or int(task_index) >= size:
        raise ValueError(
            f"{source}: the task index must be between 0 and {size - 1} (job {task_type!r} has "
            f"{size} tasks). Received: index={task_index!r}"
        )
    for address in addresses:
        split_address(address, f"{source}: address")
    return Cluster(
        rank=first_rank[task_type] + int(task_index),
        world_size=len(addresses),
        addresses=tuple(addresses),
        chiefs=first_rank["worker"],
        coordinator=addresses[0],
        source=source,
    )


def _from_resolver(resolver: Any) -> Cluster:
    source = type(resolver).__name__
    # Some resolvers (Slurm) know their task only after a request for the cluster.
    jobs = resolver.cluster_spec().as_dict()
    if not jobs:
        return Cluster(0, 1, source=source)
    tasks = {job: tuple(t) if isinstance(t, (list, tuple)) else t for job, t in jobs.items()}
    return _from_jobs(tasks, resolver.task_type, resolver.task_id, source)


def _from_launcher(environ: Mapping[str, str]) -> Cluster | None:
    if "TFDEAR_RANK" not in environ and "TFDEAR_WORLD_SIZE" not in environ:
        return None
    world_size = _integer(environ, "TFDEAR_WORLD_SIZE")
    if world_size > 1 and "TFDEAR_COORDINATOR" not in environ:
        raise ValueError("TFDEAR_COORDINATOR=host:port is needed with TFDEAR_RANK.")
    return Cluster(
        rank=_integer(environ, "TFDEAR_RANK"),
        world_size=world_size,
        coordinator=environ.get("TFDEAR_COORDINATOR", "") if world_size > 1 else "",
        local_rank=_optional_integer(environ, "TFDEAR_LOCAL_RANK"),
        local_size=_optional_integer(environ, "TFDEAR_LOCAL_SIZE"),
        source="TFDEAR_RANK",
    )


def _from_tf_config(environ: Mapping[str, str]) -> Cluster | None:
    text = environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"TF_CONFIG must be JSON ({error}). Received: TF_CONFIG={text!r}"
        ) from None
    if not isinstance(config, dict):
        raise ValueError(f"TF_CONFIG must be a JSON object. Received: TF_CONFIG={text!r}")
    jobs = config.get("cluster", {})
    if not jobs:
        return None
    task = config.get("task")
    if not isinstance(jobs, dict) or not isinstance(task, dict):
        raise ValueError(
            'TF_CONFIG must look like {"cluster": {"worker": ["host:port", ...]}, "task": '
            f'{{"type": "worker", "index": 0}}}}. Received: TF_CONFIG={text!r}'
        )
    return _from_jobs(jobs, task.get("type"), task.get("index"), _TF_CONFIG)


def _first_host(node_list: str) -> str:
    """First node of Slurm's short form: "gpu[03-05,9],login1" means gpu03, gpu04, ..."""
    first = re.match(r"(?:\[[^\]]*\]|[^,\[\]])+", node_list.strip())
    host = re.sub(r"\[\s*([^\],\-]*)[^\]]*\]", r"\1", first.group(0)) if first else ""
    if not first or not host or set(host) & set("[], "):
        raise ValueError(
            "SLURM_STEP_NODELIST (or SLURM_JOB_NODELIST) must be a list of nodes such as "
            f"node[1-4]. Received: {node_list!r}"
        )
    return host


def _from_slurm(environ: Mapping[str, str]) -> Cluster | None:
    if "SLURM_PROCID" not in environ:
        return None
    size_name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    if size_name not in environ:
        return None
    world_size = _integer(environ, size_name)
    if world_size > 1 and not {"SLURM_STEP_ID", "SLURM_STEPID"} & environ.keys():
        raise ValueError(
            f"This process runs in the batch script of a Slurm job of {world_size} tasks, and only "
            "srun starts all of them. Start the script with it: srun python train.py. For one "
            "process alone, unset SLURM_PROCID."
        )
    coordinator = environ.get("TFDEAR_COORDINATOR", "")
    if world_size > 1 and not coordinator:
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
        job = environ.get("SLURM_JOB_ID", environ.get("SLURM_JOBID", ""))
        step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID", ""))
        one_node = (environ.get("SLURM_STEP_NUM_NODES") or environ.get("SLURM_NNODES")) == "1"
        host = _LOOPBACK if one_node else _first_host(nodes)
        coordinator = f"{host}:{_derived_port(f'slurm {job}.{step}')}"
    return Cluster(
        rank=_integer(environ, "SLURM_PROCID"),
        world_size=world_size,
        coordinator=coordinator,
        local_rank=_optional_integer(environ, "SLURM_LOCALID"),
        node_rank=_optional_integer(environ, "SLURM_NODEID"),
        source=_SLURM,
    )


def _from_open_mpi(environ: Mapping[str, str]) -> Cluster | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    world_size = _integer(environ, "OMPI_COMM_WORLD_SIZE")
    local_size = _optional_integer(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    coordinator = environ.get("TFDEAR_COORDINATOR", "")
    if world_size > 1 and not coordinator:
        if "MASTER_ADDR" in environ:
            host = _meeting_host(environ["MASTER_ADDR"], local_size, world_size)
            coordinator = f"{host}:{_integer(environ, 'MASTER_PORT')}"
        elif local_size == world_size:
            job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or ""
            coordinator = f"{_LOOPBACK}:{_derived_port(f'open mpi {job}')}"
        else:
            raise ValueError(
                "Open MPI does not tell on which node rank 0 runs. Name it: mpirun -x "
                "TFDEAR_COORDINATOR=host:port ... (or MASTER_ADDR and MASTER_PORT)."
            )
    return Cluster(
        rank=_integer(environ, "OMPI_COMM_WORLD_RANK"),
        world_size=world_size,
        coordinator=coordinator,
        local_rank=_optional_integer(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=local_size,
        source="Open MPI (OMPI_COMM_WORLD_RANK)",
    )


def _from_torchrun(environ: Mapping[str, str]) -> Cluster | None:
    if not all(name in environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")):
        return None
    world_size = _integer(environ, "WORLD_SIZE")
    local_size = _optional_integer(environ, "LOCAL_WORLD_SIZE")
    coordinator = environ.get("TFDEAR_COORDINATOR", "")
    if world_size > 1 and not coordinator:
        # torchrun's own store listens on MASTER_PORT for as long as the job lives.
        port = _integer(environ, "MASTER_PORT")
        host = _meeting_host(environ["MASTER_ADDR"], local_size, world_size)
        coordinator = f"{host}:{port + 1 if port < 65535 else port - 1}"
    return Cluster(
        rank=_integer(environ, "RANK"),
        world_size=world_size,
        coordinator=coordinator,
        local_rank=_optional_integer(environ, "LOCAL_RANK"),
        local_size=local_size,
        source="torchrun (RANK)",
    )


_SOURCES: tuple[Callable[[Mapping[str, str]], Cluster | None], ...] = (
    _from_launcher,
    _from_tf_config,
    _from_torchrun,
    _from_open_mpi,
    _from_slurm,
)
