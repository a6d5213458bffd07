# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A folder behind a file system that counts what is read, and is slow or faulty on demand.

It is a process of its own, so that it shares no interpreter with what it serves. What is counted
is what programs ask of the source: the kernel keeps nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib.util
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time
from typing import Any

from tfdear.benchmarks.group import BenchmarkError

_PROGRAM = pathlib.Path(__file__).with_name("observing_file_system.py")
_PACKAGE_PARENT = str(pathlib.Path(__file__).parents[2])
_COUNTS_FILE = ".observed.json"
_DEVICE = pathlib.Path("/dev/fuse")
_SECONDS = 20.0
_LAZILY = 2  # MNT_DETACH of umount2.


class ObservedFilesError(BenchmarkError):
    """A folder cannot be observed; the message says why."""


def counts_of(path: str | os.PathLike) -> Counts:
    """What was done with the files that are seen below a path, as `ObservedFiles.counts` has it."""
    return Counts(**json.loads(pathlib.Path(path, _COUNTS_FILE).read_text()))


def missing() -> str | None:
    """Why no folder can be observed on this machine; None: it can."""
    if not _DEVICE.exists():
        return f"there is no {_DEVICE}: the kernel or the container has no FUSE"
    if not os.access(_DEVICE, os.R_OK | os.W_OK) or os.geteuid() != 0:
        return f"mounting by {_DEVICE} needs root"
    if importlib.util.find_spec("mfusepy") is None:
        return f'mfusepy is not installed; run: {sys.executable} -m pip install "tfdear[observed]"'
    return None


@dataclasses.dataclass(frozen=True)
class Counts:
    """What was done with the files of a folder."""

    bytes: int
    reads: int  # As the kernel passes them on, by at most 1 MiB.
    opens: int
    lists: int  # Of the names in a folder.
    looks: int  # At the size or time of a file.
    runs: list[int]  # Bytes that were read one behind the other, of files that were closed.


class ObservedFiles:
    """A folder, and where it is seen. Use it in a `with` statement, which unmounts it.

    Who only has the path of what is seen gets what was counted from `counts_of`.

    Patterns of faults are those of `fnmatch`, on paths below the folder; `times` is how often a
    fault happens, None: always.

    Args:
        folder: What is seen.
        path: Where it is seen, a folder that may be there. Defaults to None: one that is made.

    Raises:
        ObservedFilesError: It cannot be mounted.
    """

    def __init__(self, folder: str | os.PathLike, path: str | os.PathLike | None = None):
        reason = missing()
        if reason is not None:
            raise ObservedFilesError(reason)
        self._folder = tempfile.mkdtemp(prefix="tfdear-observed-")
        self.path = pathlib.Path(self._folder, "files") if path is None else pathlib.Path(path)
        self.path.mkdir(exist_ok=True)
        self._log = pathlib.Path(self._folder, "log")
        paths = filter(None, (_PACKAGE_PARENT, os.environ.get("PYTHONPATH")))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), os.path.abspath(folder), str(self.path)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + _SECONDS
            while not self.path.is_mount():
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise self._error("does not start")
                time.sleep(0.01)
            self.reset()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ObservedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmounts it and ends the process; who still reads gets an error."""
        # By the C library, with no process of its own: it may be all that is left to do.
        ctypes.CDLL(None).umount2(str(self.path).encode(), _LAZILY)
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:  # A program has files open: the kernel fails its reads.
            self._process.kill()
            self._process.wait(_SECONDS)
        self._process.stdout.close()
        self._log.unlink(missing_ok=True)
        # Not by all that is in there: a folder that is still mounted must stay as it is.
        for folder in (self.path, self._folder):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def reset(self) -> None:
        """Counts from 0."""
        self._call("reset")

    def counts(self) -> Counts:
        """What was done since the last `reset`."""
        return Counts(**self._call("counts"))

    def throttle(self, bytes_per_second: float | None) -> None:
        """Lets so many bytes per second pass, of all readers together; None: all."""
        self._call("throttle", bytes_per_second=bytes_per_second)

    def fail(self, pattern: str, times: int | None = None) -> None:
        """Reads fail with an error of the device."""
        self._call("fault", kind="fail", pattern=pattern, times=times)

    def cut(self, pattern: str, size: int) -> None:
        """Files end after so many bytes."""
        self._call("fault", kind="cut", pattern=pattern, size=size, times=None)

    def alter(self, pattern: str, offset: int, bits: int = 1, times: int | None = None) -> None:
        """A byte of files has some bits turned; `times` counts the reads of it."""
        self._call("fault", kind="alter", pattern=pattern, offset=offset, bits=bits, times=times)

    def heal(self) -> None:
        """Ends all faults."""
        self._call("heal")

    def _call(self, method: str, **arguments: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        request = json.dumps({"method": method, "arguments": arguments})
        deadline = time.monotonic() + _SECONDS
        received = b""
        try:
            stdin.write(request.encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._error("has ended") from None
        while not received.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise self._error(f"did not answer in time ({method})")
            part = os.read(stdout.fileno(), 1 << 20)
            if not part:
                raise self._error("has ended")
            received += part
        answer = json.loads(received)
        if "error" in answer:
            raise self._error(f"failed ({method}):\n{answer['error']}")
        return answer["result"]

    def _error(self, what: str) -> ObservedFilesError:
        printed = self._log.read_text(errors="replace")[-2000:]
        return ObservedFilesError(
            f"the file system that shows {self._folder} {what}. It printed:\n{printed}"
        )
