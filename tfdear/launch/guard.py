# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Runs one rank for the launcher, and leaves no process of that rank behind.

The launcher starts it as a script of its own, isolated (`python -I -S guard.py`), so that it
starts fast and no module of the user can shadow one that it needs. Standard library only.

Why a process in between: the kernel can tell a process that its parent died, but not its
grandchildren. The guard knows from the end of its channel that the launcher is gone, whatever
killed it, and it is the subreaper of all that the rank starts, so that it also finds processes that
have left the rank's session. If the guard itself is killed, the kernel kills the rank.

Channel (a stream socket). To the guard: bytes, each the number of a signal for the rank; the end of
the stream means that the launcher is gone. From the guard: one JSON object per line, `started`,
`not_started` or `ended`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Seconds that the kernel may take to end processes after SIGKILL; one that hangs in a system call
# (a dead network file system) is given up.
_KILL_SECONDS = 5.0


class Guard:
    """Runs one command and everything that it starts.

    `grace` is the seconds between the first signal that asks the rank to end, and SIGKILL.
    """

    def __init__(self, channel: socket.socket, grace: float):
        self._channel = channel
        self._grace = grace
        self._rank_pid = 0
        self._ended = False
        self._stopped = False
        self._kill_at = float("inf")
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)

    def run(self, command: list[str]) -> None:
        """Starts the command and returns when neither it nor a descendant is left."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # The end of the launcher is read from the channel; no signal or failed write reports it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        error = self._start(command)
        if error is not None:
            self._report(not_started=error)
            return
        self._report(started=self._rank_pid)
        poll = select.poll()  # Descriptors may have any number.
        for descriptor in (self._channel.fileno(), self._wake_read):
            poll.register(descriptor, select.POLLIN)
        while self._reap():
            seconds = self._kill_at - time.monotonic()
            if seconds <= -_KILL_SECONDS:
                return
            if seconds <= 0:
                self._signal_all(signal.SIGKILL)
                # Processes that started while the list was being made are in the next one.
                seconds = 0.02
            ready = dict(poll.poll(1000 * min(seconds, 3600.0)))
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            if self._channel.fileno() in ready and not self._forward_signals():
                poll.unregister(self._channel.fileno())

    def _start(self, command: list[str]) -> str | None:
        """Forks and executes; returns what went wrong, or None."""
        error_read, error_write = os.pipe()
        guard_pid = os.getpid()
        self._rank_pid = os.fork()
        if self._rank_pid == 0:
            try:
                os.setsid()
                _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != guard_pid:
                    os._exit(1)
                # Python and this guard ignore these; the command gets the default handlers.
                for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM):
                    signal.signal(number, signal.SIG_DFL)
                os.execvp(command[0], command)
            except OSError as failure:
                os.write(error_write, (failure.strerror or str(failure)).encode())
            finally:
                os._exit(127)
        os.close(error_write)
        with os.fdopen(error_read, "rb") as errors:
            text = errors.read().decode()
        return text or None

    def _reap(self) -> bool:
        """Collects what ended; False when nothing is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._rank_pid:
                self._ended = True
                self._report(ended=status, time=time.monotonic(), stopped=self._stopped)
                # The processes that it leaves behind are of no use any more.
                self._signal_all(signal.SIGTERM)
                self._end_within(self._grace)

    def _forward_signals(self) -> bool:
        """Passes on the launcher's signals; False when it will send no more."""
        try:
            numbers = self._channel.recv(64)
        except ConnectionError:
            numbers = b""
        for number in numbers or bytes([signal.SIGTERM]):
            self._stopped = self._stopped or _state(self._rank_pid) in ("T", "t")
            if number == signal.SIGKILL:
                self._end_within(0.0)
            elif number == signal.SIGTERM:
                self._signal_all(signal.SIGTERM)
                self._end_within(self._grace)
            elif not self._ended:
                # As a terminal does: to the rank's process group, not to processes that left it.
                _signal(-self._rank_pid, number)
                self._end_within(self._grace)
            # A process that was stopped cannot act on a signal.
            self._signal_all(signal.SIGCONT)
        return bool(numbers)

    def _end_within(self, seconds: float) -> None:
        self._kill_at = min(self._kill_at, time.monotonic() + seconds)

    def _signal_all(self, number: int) -> None:
        if not self._ended:
            _signal(-self._rank_pid, number)
        for pid in _descendants(os.getpid()):
            if self._ended or _group(pid) != self._rank_pid:
                _signal(pid, number)

    def _report(self, **event: object) -> None:
        # The launcher may be gone, which `_forward_signals` notices.
        with contextlib.suppress(OSError):
            self._channel.sendall(json.dumps(event).encode() + b"\n")


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _signal(pid: int, number: int) -> None:
    # It may have ended, or run as another user, whose processes only root can signal.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def _stat(pid: int) -> list[str]:
    """State, parent and so on of a process; empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The name, in parentheses, may hold anything.
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    return (_stat(pid) or [""])[0]


def _descendants(ancestor: int) -> list[int]:
    """Children, their children and so on, without those that have ended."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            stat = _stat(int(name))
            if stat and stat[0] != "Z":
                children.setdefault(int(stat[1]), []).append(int(name))
    found = list(children.get(ancestor, []))
    for pid in found:
        found += children.get(pid, [])
    return found


def main() -> None:
    """Entry point: file descriptor of the channel, grace in seconds, command."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    Guard(channel, float(sys.argv[2])).run(sys.argv[3:])


if __name__ == "__main__":
    main()
