# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank that uses PyTorch with its Gloo backend."""

import datetime
import os
import socket
import time

import torch
import torch.distributed


def prepare() -> dict:
    """Rank 0: what all ranks must know before they start."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return {"port": probe.getsockname()[1]}


def start(rank: int, addresses: list, hostnames: list, prepared: dict) -> str:
    """Joins the job."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{addresses[0]}:{prepared['port']}",
        rank=rank,
        world_size=len(addresses),
        timeout=datetime.timedelta(seconds=60),
    )
    return f"PyTorch {torch.__version__} (Gloo)"


def collective(name: str, nbytes: int, repeats: int) -> float:
    """Seconds per collective on `nbytes` bytes of float32."""
    world_size = torch.distributed.get_world_size()
    data = torch.zeros(nbytes // 4)
    shard = torch.zeros(nbytes // 4 // world_size)
    run = {
        "all_reduce": lambda: torch.distributed.all_reduce(data),
        "reduce_scatter": lambda: torch.distributed.reduce_scatter_tensor(shard, data),
        "all_gather": lambda: torch.distributed.all_gather_into_tensor(data, shard),
    }[name]
    torch.distributed.barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - begin) / repeats


METHODS = {"prepare": prepare, "start": start, "collective": collective}
