# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Starts this rank's TensorFlow server: coordination service on rank 0, heartbeats on all ranks."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import threading
from typing import Any

import tensorflow as tf
from absl import logging

from tfdear import errors
from tfdear._private import tensorflow as _tf_private
from tfdear.engine import c_api
from tfdear.rendezvous import coordination
from tfdear.rendezvous.cluster import Cluster, is_loopback, split_address


def require_fresh_context() -> None:
    """Raises when TensorFlow already runs: its devices can no longer join a cluster."""
    if _tf_private.context.context()._context_handle is not None:
        raise RuntimeError(
            "TensorFlow was already in use when DearStrategy was created. With more than one "
            "process, create tfdear.DearStrategy() first: before any tensor, variable, dataset or "
            "tf.config.list_logical_devices()."
        )


def require_free_port(address: str) -> None:
    """Raises when rank 0 cannot listen on "host:port" for the coordination service.

    TensorFlow's own error names neither the address nor the reason.
    """
    host, port = split_address(address, "coordinator")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As TensorFlow's server does.
        try:
            probe.bind(("127.0.0.1" if is_loopback(host) else "", port))
        except OSError as error:
            hint = "Choose another port."
            if error.errno == errno.EADDRINUSE:
                hint = "Another job, or an earlier run of this one, may still hold it: "
                hint += f"`ss -ltnp 'sport = :{port}'` shows which. Stop it or choose another port."
            raise errors.RendezvousError(
                f"rank 0 cannot listen on {address} for the coordination service: "
                f"{error.strerror}. {hint}"
            ) from None


class ServerStart(threading.Thread):
    """Connects TensorFlow in the background, so that the caller can keep its own deadline.

    TensorFlow may take `register_timeout` seconds to reach rank 0.
    """

    def __init__(self, cluster: Cluster, heartbeat: float, register_timeout: float):
        super().__init__(name="tfdear-server-start", daemon=True)
        self.error: BaseException | None = None
        host = split_address(cluster.coordinator, "coordinator")[0]
        # The redirected server listens on 127.0.0.1, where nobody connects for ::1.
        self._loopback_only = is_loopback(host) and host != "::1"
        addresses = [cluster.coordinator, *(cluster.addresses or ())]
        self._hosts = {split_address(text, "address")[0] for text in addresses}
        self._server = _server_definition(cluster, heartbeat, register_timeout)

    def run(self) -> None:
        """Starts the server and waits until every rank has connected."""
        try:
            self._connect()
        except Exception as error:  # Handed to the thread that waits.
            self.error = error

    def _connect(self) -> None:
        context = _tf_private.context.context()
        _bypass_proxies(self._hosts)
        if self._loopback_only:
            _bind_to_loopback()
        original = _tf_private.pywrap_tfe.TFE_EnableCollectiveOps
        # TensorFlow's wrapper holds the interpreter lock until the last rank has connected: no
        # other thread could then notice that the deadline has passed.
        _tf_private.pywrap_tfe.TFE_EnableCollectiveOps = _enable_collective_ops_unlocked
        try:
            context.enable_collective_ops(self._server)
            context.ensure_initialized()
        finally:
            _tf_private.pywrap_tfe.TFE_EnableCollectiveOps = original
            if self._loopback_only:
                # Servers that the script starts later are not redirected.
                c_api.load().tfdear_bind_to_loopback(0)


def _bypass_proxies(hosts: set[str]) -> None:
    """Bypasses web proxies: gRPC would ask them even for loopback, and wait.

    Only gRPC reads this variable, instead of `no_proxy`.
    """
    variable = "no_grpc_proxy"
    direct = os.environ.get(variable) or os.environ.get("no_proxy") or ""
    known = set(filter(None, direct.split(",")))
    os.environ[variable] = ",".join(sorted(known | hosts))


def restore_signal_handlers() -> None:
    """Gives SIGTERM back to Python.

    With a coordination service, TensorFlow takes SIGTERM for a notice of preemption and goes on, so
    that a launcher could not end a rank. Only the main thread can set signal handlers; in any
    other, this does nothing.
    """
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _server_definition(cluster: Cluster, heartbeat: float, register_timeout: float) -> Any:
    context = _tf_private.context.context()
    config = context.config
    service = config.experimental.coordination_config
    service.service_type = "standalone"
    service.service_leader = f"/job:{coordination.JOB}/replica:0/task:0"
    service.enable_health_check = True
    service.heartbeat_timeout_in_ms = int(heartbeat * 1000)
    service.cluster_register_timeout_in_ms = int(register_timeout * 1000)
    service.coordinated_job_list.add(name=coordination.JOB, num_tasks=cluster.world_size)
    # `unhealthy_tasks` reports a rank that is lost, and the monitor acts on it. Were the job not
    # recoverable, the service would also call every other rank's server, whose address it does not
    # know (see below): rank 0 then ends with a segmentation fault.
    service.recoverable_jobs.append(coordination.JOB)

    definition = tf.train.ServerDef(
        job_name=coordination.JOB,
        task_index=cluster.rank,
        protocol="grpc",
        default_session_config=config,
    )
    job = definition.cluster.job.add(name=coordination.JOB)
    # Ranks call rank 0's service only. Their own server, which TensorFlow insists on, may listen on
    # any port: port 0 cannot be taken.
    job.tasks[0] = cluster.coordinator
    if cluster.rank != 0:
        host = split_address(cluster.coordinator, "coordinator")[0]
        own = "127.0.0.1" if is_loopback(host) else socket.gethostname()
        job.tasks[cluster.rank] = f"{own}:0"
    return definition


def _bind_to_loopback() -> None:
    """Keeps TensorFlow's server on the loopback interface: see [Note: loopback only] in the engine.

    TensorFlow has no setting for the address, and whoever reaches the port can run code.
    """
    # Loads the library whose calls are redirected, in case TensorFlow has not yet.
    ctypes.CDLL(os.path.join(tf.sysconfig.get_lib(), "libtensorflow_cc.so.2"))
    if c_api.load().tfdear_bind_to_loopback(1) < 1:
        logging.warning(
            "tfdear: TensorFlow's server could not be kept on the loopback interface; its port is "
            "open on every interface of this machine. Close it with a firewall."
        )


def _enable_collective_ops_unlocked(context_handle: Any, server_definition: bytes) -> None:
    """TFE_EnableCollectiveOps through ctypes, which releases the interpreter lock meanwhile."""
    tensorflow = ctypes.CDLL(os.path.join(tf.sysconfig.get_lib(), "libtensorflow_cc.so.2"))
    tensorflow.TF_NewStatus.restype = ctypes.c_void_p
    tensorflow.TF_Message.restype = ctypes.c_char_p
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

    status = ctypes.c_void_p(tensorflow.TF_NewStatus())
    tensorflow.TFE_EnableCollectiveOps(
        ctypes.c_void_p(pointer_of(context_handle, name_of(context_handle))),
        server_definition,
        ctypes.c_size_t(len(server_definition)),
        status,
    )
    code = tensorflow.TF_GetCode(status)
    message = (tensorflow.TF_Message(status) or b"").decode(errors="replace")
    tensorflow.TF_DeleteStatus(status)
    if code:
        raise _tf_private.errors_impl.exception_type_from_error_code(code)(None, None, message)
