# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Brings what the ranks print to the terminal and to files, as bytes.

One rank, rank 0, is live: its bytes go out as they come, so that progress bars move. The others
come out line by line, each behind a prefix, and never in the middle of a line of the live rank.
"""

from __future__ import annotations

import errno
import os
import re
import time
from typing import BinaryIO

# A longer line goes out in pieces, so that a rank cannot fill the memory.
_LONGEST_LINE = 1 << 16
# Kept of every rank's output, to be shown if it fails; a traceback through a graph is long.
_TAIL_BYTES = 1 << 16
# What TensorFlow's C++ code logs at every start. TF_CPP_MIN_LOG_LEVEL does not suppress all of it.
_STARTUP_LOG = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\)"
    rb"|I\d{4} [\d:.]+ +\d+ [\w./]+:\d+\] "
    rb"|\d{4}-\d\d-\d\d [\d:.]+: I tensorflow/"
    rb"|To enable the following instructions: .*rebuild TensorFlow"
    rb"|(E\d{4} |\d{4}-\d\d-\d\d [\d:.]+: E ).* failed call to cuInit: "
)
_TRACEBACK = "Traceback (most recent call last):"
# "KeyError: 'x'", "package.module.SomeError: text", "SomeError".
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*)?$")
_LONGEST_CAUSE = 300
# Seconds for which a line waits for the live rank to finish its own.
_HOLD_SECONDS = 0.2
# The ranks are not read while this much waits for a slow reader.
_FULL_BYTES = 1 << 20
# Linux accepts this much without blocking when a pipe is reported writable (PIPE_BUF).
_SAFE_WRITE_BYTES = 4096


class LinePrefixer:
    r"""Turns a stream of bytes into whole lines behind a prefix.

    Of a line that is redrawn with `\r`, only the last state remains. What TensorFlow logs at every
    start is left out. Nothing is decoded, and a line is cut only between characters: UTF-8 that
    arrives in pieces stays whole.
    """

    def __init__(self, prefix: bytes):
        self._prefix = prefix
        self._partial = b""

    def feed(self, data: bytes) -> bytes:
        """Takes bytes; returns the lines that they complete."""
        *lines, rest = (self._partial + data).split(b"\n")
        # A carriage return at the end may still be followed by a line feed or a new state.
        body = rest.rstrip(b"\r")
        self._partial = body[body.rfind(b"\r") + 1 :] + rest[len(body) :]
        while len(self._partial) > _LONGEST_LINE:
            cut = _LONGEST_LINE
            while cut > _LONGEST_LINE - 4 and self._partial[cut] & 0xC0 == 0x80:
                cut -= 1
            lines.append(self._partial[:cut])
            self._partial = self._partial[cut:]
        return b"".join(self._line(line) for line in lines)

    def close(self) -> bytes:
        """Returns what is left when the stream has ended without a line feed."""
        partial, self._partial = self._partial, b""
        return self._line(partial) if partial else b""

    def _line(self, line: bytes) -> bytes:
        line = line.rstrip(b"\r")
        line = line[line.rfind(b"\r") + 1 :]
        return b"" if _STARTUP_LOG.match(line) else self._prefix + line + b"\n"


class Sink:
    """Where output goes: the launcher's stdout, its stderr, or both when they are the same file.

    Nothing here blocks: bytes wait until the event loop finds the file descriptor writable. So the
    launcher ends its ranks in time even when nothing reads what they print.
    """

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self.is_terminal = os.isatty(descriptor)
        self.is_broken = False
        self._pending = bytearray()
        self._held = bytearray()
        self._hold_until = 0.0
        self._in_line = False

    def write_live(self, data: bytes) -> None:
        """Queues bytes of the live rank, unchanged."""
        if self.is_broken:
            return
        self._pending += data
        self._in_line = not data.endswith(b"\n")
        self._release()

    def write_lines(self, lines: bytes) -> None:
        """Queues whole lines of another rank or of the launcher."""
        if not lines or self.is_broken:
            return
        if not self._held:
            self._hold_until = time.monotonic() + _HOLD_SECONDS
        self._held += lines
        self._release()

    def wants_to_write(self) -> bool:
        """Whether bytes wait to be written."""
        return bool(self._pending) and not self.is_broken

    def is_full(self) -> bool:
        """Whether too much waits for the ranks to be read."""
        return len(self._pending) > _FULL_BYTES and not self.is_broken

    def seconds_to_release(self) -> float:
        """Seconds until lines that are held must go out; infinite when there are none."""
        return max(0.0, self._hold_until - time.monotonic()) if self._held else float("inf")

    def release(self, now: bool = False) -> None:
        """Queues the held lines if their time has come (or now), on a new line."""
        if self._held and (now or self.seconds_to_release() <= 0):
            if self._in_line:
                self._pending += b"\n"
                self._in_line = False
            self._release()

    def write_some(self) -> None:
        """Writes a part of what waits; call it when the file descriptor is writable."""
        try:
            written = os.write(self.descriptor, self._pending[:_SAFE_WRITE_BYTES])
            del self._pending[:written]
        except BlockingIOError:
            pass
        except OSError as error:
            # A full disk may have room again later; a closed reader does not come back.
            self.is_broken = error.errno != errno.ENOSPC
            self._pending.clear()

    def _release(self) -> None:
        if not self._in_line:
            self._pending += self._held
            self._held.clear()


class Relay:
    """Brings what one rank prints into one pipe or terminal to a sink and to a log file.

    `close` closes the source. Without a sink nothing is shown; without a prefix the rank is live.
    """

    def __init__(
        self, source: int, sink: Sink | None, prefix: bytes | None, log: BinaryIO | None = None
    ):
        self.source = source
        self.sink = sink
        self.tail = b""
        self._log = log
        self._prefixer = None if prefix is None else LinePrefixer(prefix)
        self.is_open = True
        os.set_blocking(source, False)

    def read_some(self) -> bool:
        """Reads what is there; False when the stream has ended."""
        if not self.is_open:
            return False
        try:
            data = os.read(self.source, 1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            data = b""  # EIO: the last process closed its side of a pseudo-terminal.
        if not data:
            return False
        self.tail = (self.tail + data)[-_TAIL_BYTES:]
        self._write_log(data)
        if self.sink is not None:
            if self._prefixer is None:
                self.sink.write_live(data)
            else:
                self.sink.write_lines(self._prefixer.feed(data))
        return True

    def _write_log(self, data: bytes) -> None:
        if self._log is None:
            return
        try:
            self._log.write(data)
        except OSError as error:
            # A full disk ends the log, not the training.
            if self.sink is not None:
                text = f"tfdear run: no more is written to {self._log.name}: {error.strerror}.\n"
                self.sink.write_lines(text.encode())
            self._log = None

    def close(self) -> None:
        """Reads what is still there and closes; does not wait for more."""
        if not self.is_open:
            return
        # Bounded: a process that was left behind may print for ever.
        for _ in range(64):
            old_tail = self.tail
            if not self.read_some() or self.tail is old_tail:
                break
        self.is_open = False
        os.close(self.source)
        if self.sink is not None and self._prefixer is not None:
            self.sink.write_lines(self._prefixer.close())


def last_lines(data: bytes, count: int) -> list[str]:
    r"""The last lines of raw output, for people to read: of each, the last state that `\r` left.

    The first line of the data may be incomplete.
    """
    text = LinePrefixer(b"").feed(data + b"\n").decode(errors="replace")
    lines = [line.rstrip() for line in text.splitlines()]
    return [line for line in lines if line][-count:]


def exception_line(data: bytes) -> str | None:
    """The line that names the exception which ended a Python program, such as "KeyError: 'x'".

    In the end of what it printed, stderr included; None if there is no traceback.
    """
    _, found, after = data.decode(errors="replace").rpartition(_TRACEBACK)
    if not found:
        return None
    # Frames are indented; long messages go on for many lines below.
    ends = (line for line in after.splitlines() if line and not line[0].isspace())
    cause = next((line.rstrip() for line in ends if _EXCEPTION.match(line)), None)
    if cause is not None and len(cause) > _LONGEST_CAUSE:
        cause = cause[:_LONGEST_CAUSE] + "..."
    return cause


def tail_of_file(path: str) -> bytes:
    """The last bytes of a log file; empty when it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read()
    except OSError:
        return b""
