# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""One rank, as the launcher sees it through the rank's guard."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from tfdear.launch.output import Relay, tail_of_file

# Seconds that a guard may take beyond the time it gives its rank.
GUARD_SECONDS = 10.0
# What the monitor logs on a rank that ends because of another one.
_ENDS = re.compile(rb"tfdear: rank \d+ ends: ")


class Rank:
    """One rank, its guard, the launcher's side of the guard's channel, and what is known of it."""

    def __init__(self, number: int, guard: subprocess.Popen, channel: socket.socket):
        self.number = number
        self.guard = guard
        self.channel = channel
        self.started_at = time.monotonic()
        self.relays: list[Relay] = []
        self.log_path: str | None = None
        self.pid = 0
        self.ended_at: float | None = None
        self.exit_code: int | None = None
        self.error = ""
        self.was_stopped = False
        self.is_gone = False
        self._received = b""

    def read_events(self) -> None:
        """Reads the guard's events; the end of the channel is the end of the rank."""
        try:
            data = self.channel.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            self._handle(json.loads(line))
        if not data:
            self.leave()

    def _handle(self, event: dict[str, Any]) -> None:
        if "started" in event:
            self.pid = event["started"]
        elif "not_started" in event:
            self.end(127, error=f"could not be started: {event['not_started']}")
        else:
            self.was_stopped = event["stopped"]
            self.end(os.waitstatus_to_exitcode(event["ended"]), at=event["time"])

    def end(self, exit_code: int, at: float | None = None, error: str = "") -> None:
        """Records the end of the rank; its guard may still be ending what it left behind."""
        if self.exit_code is None:
            self.exit_code = exit_code
            self.error = error
            self.ended_at = time.monotonic() if at is None else at

    def leave(self) -> None:
        """Records that the guard has ended, and with it every process of this rank."""
        try:
            self.guard.wait(timeout=GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            self.guard.kill()
            self.guard.wait()
        if self.exit_code is None:
            # The guard was killed. The kernel then kills the rank, and this the rest of its group.
            self.kill_group()
            self.end(self.guard.returncode or 1, error="was lost: its guard process was killed")
        for relay in self.relays:
            relay.close()
        self.channel.close()
        self.is_gone = True

    def signal(self, number: int) -> None:
        """Sends the rank a signal, through its guard."""
        if not self.is_gone:
            with contextlib.suppress(OSError):
                self.channel.send(bytes([number]))

    def kill_group(self) -> None:
        """Kills the rank's process group without its guard."""
        if self.pid:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def __str__(self) -> str:
        return f"rank {self.number}"

    @property
    def has_failed(self) -> bool:
        """Whether it ended with anything but exit code 0."""
        return self.exit_code not in (None, 0)

    @property
    def code_for_shell(self) -> int:
        """Its exit code as a shell reports it: 128 + n after signal n."""
        code = self.exit_code or 0
        return 128 - code if code < 0 else code

    @property
    def printed(self) -> bytes:
        """The end of what it printed."""
        if not self.relays and self.log_path:
            return tail_of_file(self.log_path)
        return b"\n".join(relay.tail for relay in self.relays)

    @property
    def ended_for_another(self) -> bool:
        """Whether it says that it ends because another one did."""
        return _ENDS.search(self.printed) is not None

    def ending(self) -> str:
        """How it ended: "exited with code 1"."""
        if self.error:
            return self.error
        code = self.exit_code or 0
        text = f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
        if self.was_stopped:
            text += " (it was stopped before, as by SIGSTOP, and did not react)"
        return text


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def names(ranks: Sequence[Rank]) -> str:
    """ "rank 3" or "ranks 0, 3"."""
    numbers = sorted(rank.number for rank in ranks)
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
