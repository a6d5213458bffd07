# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Starts Python scripts in processes that have TensorFlow imported already.

A fresh interpreter needs seconds of processor time to import TensorFlow and Keras, which is more
than most tests of several ranks take. One server imports them once and forks for every script. From
there on a process is like a fresh one: its own session, arguments, environment and output, and the
interpreter's own way to the end. Only what reads the environment at import time does so in the
server; tfdear itself is not imported there.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import pathlib
import selectors
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence

_START_SECONDS = 120.0
# Makes a process print where each of its threads is, also while the interpreter ends.
_STACKS = signal.SIGUSR2
_STACKS_SECONDS = 0.5


class ForkedProcess:
    """A process that the server started; the part of `subprocess.Popen` that tests use."""

    def __init__(self, server: ForkServer):
        self._server = server
        self.pid = 0
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """None while it runs, else its exit code, minus the signal's number if one ended it."""
        self._server.read_messages()
        return self.returncode

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise TimeoutError(f"process {self.pid} has not ended within {timeout:g} s")
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def where_it_stands(self) -> str:
        """Makes it print the stack of each of its threads; returns in which calls they wait.

        "" where it has ended.
        """
        if self.poll() is not None:
            return ""
        self.send_signal(_STACKS)
        time.sleep(_STACKS_SECONDS)
        threads = pathlib.Path(f"/proc/{self.pid}/task").glob("*")
        lines = []
        # Of a thread, or of the process, that ends meanwhile there is nothing to say.
        with contextlib.suppress(OSError):
            for thread in threads:
                name, call = ((thread / file).read_text().strip() for file in ("comm", "wchan"))
                lines.append(f"thread {thread.name} {name}: {call}")
        return "\n".join(lines)

    def kill_session(self) -> None:
        """Ends it together with the processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class ForkServer:
    """The server's process, and what it has said about those that it started."""

    def __init__(self, environment: Mapping[str, str]):
        self._connection, remote = socket.socketpair()
        with remote:
            self._process = subprocess.Popen(
                [sys.executable, "-u", __file__, str(remote.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[remote.fileno()],
            )
        self._connection.settimeout(_START_SECONDS)
        self._received = b""
        # By number of the request: the system uses process ids again.
        self._started: list[ForkedProcess] = []

    def start(
        self,
        script: pathlib.Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        output: pathlib.Path,
    ) -> ForkedProcess:
        """Runs a script with these variables alone; both of its streams go to a file."""
        request = {
            "number": len(self._started),
            "arguments": [str(script), *arguments],
            "directory": os.getcwd(),
            "environment": dict(environment),
            "output": str(output),
        }
        process = ForkedProcess(self)
        self._started.append(process)
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        while not process.pid:
            self.read_messages(_START_SECONDS)
        return process

    def read_messages(self, timeout: float = 0.0) -> None:
        """Notes which processes have begun and ended; waits for a message if a time is given."""
        self._connection.settimeout(timeout)
        try:
            while part := self._connection.recv(65536):
                self._received += part
                self._connection.settimeout(0.0)
            raise RuntimeError(f"the fork server has ended with code {self._process.wait(10)}")
        except BlockingIOError:
            pass
        except TimeoutError:
            raise RuntimeError(f"the fork server has said nothing for {timeout:g} s") from None
        finally:
            self._connection.settimeout(_START_SECONDS)
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            message = json.loads(line)
            process = self._started[message["number"]]
            process.pid, process.returncode = message["pid"], message["returncode"]


def _serve(connection: socket.socket) -> dict | None:
    """Forks for every request; returns the request in the new process, None at the end."""
    ending = selectors.DefaultSelector()
    ending.register(connection, selectors.EVENT_READ)
    running: dict[int, tuple[int, int]] = {}
    received = b""
    while True:
        for key, _ in ending.select():
            if key.fileobj is connection:
                part = connection.recv(65536)
                if not part:
                    for _, pid in running.values():
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(pid, signal.SIGKILL)
                    return None
                *lines, received = (received + part).split(b"\n")
                for line in lines:
                    request = json.loads(line)
                    pid = os.fork()
                    if pid == 0:
                        ending.close()
                        for descriptor in running:
                            os.close(descriptor)
                        return request
                    descriptor = os.pidfd_open(pid)
                    running[descriptor] = request["number"], pid
                    ending.register(descriptor, selectors.EVENT_READ)
            else:
                ending.unregister(key.fileobj)
                os.close(key.fileobj)
                number, pid = running.pop(key.fileobj)
                status = os.waitpid(pid, 0)[1]
                _send(connection, number, pid, os.waitstatus_to_exitcode(status))


def _send(connection: socket.socket, number: int, pid: int, returncode: int | None) -> None:
    message = {"number": number, "pid": pid, "returncode": returncode}
    connection.sendall(json.dumps(message).encode() + b"\n")


def _become(request: dict) -> None:
    """Takes on the streams, variables and arguments that the request names."""
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    faulthandler.register(_STACKS, all_threads=True)
    sys.argv = request["arguments"]
    paths = request["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [str(pathlib.Path(sys.argv[0]).parent), *filter(None, paths), *sys.path[1:]]


def main() -> None:
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"TensorFlow started threads: {threads}"
    # What is there now stays: else every process, at its end, looks through all of TensorFlow's
    # objects for garbage, and with that copies their memory; more than a second each.
    gc.collect()
    gc.freeze()
    # Tracing makes objects by the hundred thousand, nearly all of which stay until it is over: with
    # Python's own limits some hundredths of a job's time go into looking through them.
    gc.set_threshold(50_000, 20, 50)
    connection = socket.socket(fileno=int(sys.argv[1]))
    request = _serve(connection)
    if request is None:
        return
    os.setsid()
    # Only now, so that whoever hears of the process can end its session.
    _send(connection, request["number"], os.getpid(), None)
    connection.close()
    _become(request)
    # Stays until the interpreter ends, as the variables of a script do.
    module = types.ModuleType("__main__")
    module.__file__ = sys.argv[0]
    sys.modules["__main__"] = module
    exec(compile(pathlib.Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec"), module.__dict__)


if __name__ == "__main__":
    main()
