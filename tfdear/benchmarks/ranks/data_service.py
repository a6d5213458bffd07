# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A node of tf.data service: a worker, and on the first node the dispatcher."""

import socket

import tensorflow as tf

_servers: list = []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def prepare(hostnames: list[str]) -> dict:
    """Rank 0: starts the dispatcher."""
    config = tf.data.experimental.service.DispatcherConfig(port=_free_port())
    _servers.append(tf.data.experimental.service.DispatchServer(config))
    return {"port": config.port}


def start(rank: int, addresses: list[str], hostnames: list[str], prepared: dict) -> str:
    """Starts the worker; returns the dispatcher's address."""
    dispatcher = f"{addresses[0]}:{prepared['port']}"
    port = _free_port()
    config = tf.data.experimental.service.WorkerConfig(
        dispatcher_address=dispatcher, worker_address=f"{addresses[rank]}:{port}", port=port
    )
    _servers.append(tf.data.experimental.service.WorkerServer(config))
    return f"grpc://{dispatcher}"
