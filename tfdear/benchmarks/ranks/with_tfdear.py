# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank that uses tfdear's engine."""

import os
import socket

import numpy as np

from tfdear import engine as engine_module
from tfdear import job as job_module
from tfdear import options as options_module

_LANE = engine_module.Lane.GRADIENTS
_job: job_module.Job


def prepare() -> dict:
    """Rank 0: what all ranks must know before they start."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return {"port": probe.getsockname()[1]}


def start(rank: int, addresses: list[str], hostnames: list[str], prepared: dict) -> str:
    """Joins the job."""
    global _job
    os.environ.update(
        TFDEAR_RANK=str(rank),
        TFDEAR_WORLD_SIZE=str(len(addresses)),
        TFDEAR_LOCAL_RANK="0",
        TFDEAR_LOCAL_SIZE="1",
        TFDEAR_NODE_RANK=str(rank),
        TFDEAR_COORDINATOR=f"{addresses[0]}:{prepared['port']}",
    )
    _job = job_module.Job(options_module.DearOptions())
    import tfdear

    return f"tfdear {tfdear.__version__}"


def collective(name: str, nbytes: int, repeats: int) -> float:
    """Seconds per collective on `nbytes` bytes of float32."""
    # Zeros stay zeros, however often they are summed in place.
    data = np.zeros(nbytes // 4, np.float32)
    run = _job.engine.run_collective
    phases = engine_module.Phase
    run(_LANE, phases.ALL_REDUCE, data[:1])  # A barrier.
    if name == "pair":
        seconds = 0.0
        for _ in range(repeats):
            seconds += run(_LANE, phases.REDUCE_SCATTER, data)
            seconds += run(_LANE, phases.ALL_GATHER, data)
        return seconds / repeats
    return run(_LANE, phases[name.upper()], data, repeats=repeats) / repeats


METHODS = {"prepare": prepare, "start": start, "collective": collective}
