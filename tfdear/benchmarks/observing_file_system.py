# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A file system that shows a folder, read-only: observing_file_system.py FOLDER MOUNT_POINT.

Answers lines of JSON, {"method": ..., "arguments": {...}}, by lines, as `observed_files.py` sends
them. Unmounts when its input ends, so that no mount outlives the program that started it. Nothing
is kept in the kernel's caches: every read of a program is seen here.
"""

from __future__ import annotations

import ctypes
import errno
import fnmatch
import json
import os
import stat
import sys
import threading
import time
import traceback
from typing import Any

from tfdear.base import extras

with extras.required("observed"):
    import mfusepy

_LAZILY = 2  # MNT_DETACH of umount2: also while a program is in there.
# What passes at once after a pause, in seconds of the rate.
_BURST_SECONDS = 0.05
# A file that no folder lists, with what was counted; to read it counts for nothing.
_COUNTS_FILE = "/.observed.json"
_ATTRIBUTES = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_ino")


class _Rate:
    """Lets so many bytes per second pass, of all readers together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds_per_byte = 0.0
        self._free_at = 0.0

    def set(self, bytes_per_second: float | None) -> None:
        """None: as many as there are."""
        with self._lock:
            self._seconds_per_byte = 1 / bytes_per_second if bytes_per_second else 0.0

    def take(self, nbytes: int) -> None:
        """Waits until these bytes may pass."""
        with self._lock:
            now = time.monotonic()
            begin = max(self._free_at, now - _BURST_SECONDS)
            self._free_at = begin + nbytes * self._seconds_per_byte
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)


class _File:
    """How far a program has read a file that it has open, and how many bytes in a row."""

    def __init__(self) -> None:
        self.end, self.run = -1, 0


class ObservingFileSystem(mfusepy.Operations):
    """Counts what is read of a folder, and can slow it down, fail it, cut it and alter it."""

    use_ns = True

    def __init__(self, folder: str, mount_point: str):
        self._folder, self._mount_point = folder, mount_point
        self._lock = threading.Lock()
        self._files: dict[int, _File] = {}
        self._rate = _Rate()
        self._faults: list[dict[str, Any]] = []
        self.reset()

    # What is asked for over the pipe.

    def reset(self) -> None:
        """Counts from 0."""
        with self._lock:
            self._counts = dict.fromkeys(("bytes", "reads", "opens", "lists", "looks"), 0)
            self._runs: list[int] = []
            for file in self._files.values():
                file.run = 0

    def counts(self) -> dict[str, Any]:
        """What was done since the last reset; `runs` are those of files that were closed."""
        with self._lock:
            return {**self._counts, "runs": self._runs}

    def throttle(self, bytes_per_second: float | None) -> None:
        """Lets so many bytes per second pass; None: all."""
        self._rate.set(bytes_per_second)

    def fault(self, **fault: Any) -> None:
        """From now on, files whose paths match are faulty."""
        with self._lock:
            self._faults.append(fault)

    def heal(self) -> None:
        """Ends all faults."""
        with self._lock:
            self._faults.clear()

    def unmount(self) -> None:
        """Removes the file system; programs that have files open get to their ends."""
        # Of the C library: `umount` might not be on the path, and is another process.
        ctypes.CDLL(None).umount2(self._mount_point.encode(), _LAZILY)

    def _apply(self, path: str, kind: str, begin: int = 0, end: int = 0) -> list[dict[str, Any]]:
        """The faults of a kind that bytes of a file have; those of a number of times are used up.

        A fault without a place is everywhere.
        """
        with self._lock:
            found = [
                fault
                for fault in self._faults
                if fault["kind"] == kind
                and fnmatch.fnmatch(path.lstrip("/"), fault["pattern"])
                and begin <= fault.get("offset", begin) <= max(begin, end - 1)
            ]
            for fault in found:
                if fault["times"] is not None:
                    fault["times"] -= 1
            self._faults = [fault for fault in self._faults if fault["times"] != 0]
        return found

    def _count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._counts[name] += number

    # What the kernel asks for.

    def init_with_config(self, conn_info: Any, config_3: Any) -> None:
        """Lets the kernel keep nothing, neither names nor sizes."""
        if config_3 is not None:
            config_3.attr_timeout = config_3.entry_timeout = config_3.negative_timeout = 0.0

    def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:
        """Size and times of a file or folder."""
        if path == _COUNTS_FILE:
            return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": 0}
        self._count("looks")
        found = os.lstat(self._folder + path)
        attributes: dict[str, Any] = {name: getattr(found, name) for name in _ATTRIBUTES}
        for name in ("st_atime", "st_mtime", "st_ctime"):
            attributes[name] = getattr(found, f"{name}_ns")
        for fault in self._apply(path, "cut"):
            attributes["st_size"] = min(attributes["st_size"], fault["size"])
        return attributes

    def readdir(self, path: str, fh: Any) -> list[str]:
        """The names in a folder."""
        self._count("lists")
        return [".", "..", *os.listdir(self._folder + path)]

    def open(self, path: str, fi: Any) -> int:
        """Opens a file for reading."""
        if fi.flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, "")
        fi.direct_io = 1
        if path == _COUNTS_FILE:
            fi.fh = os.memfd_create("counts")
            os.write(fi.fh, json.dumps(self.counts()).encode())
            return 0
        self._count("opens")
        fi.fh = os.open(self._folder + path, os.O_RDONLY)
        with self._lock:
            self._files[fi.fh] = _File()
        return 0

    def read(self, path: str, size: int, offset: int, fi: Any) -> bytes:
        """Some bytes of a file."""
        if path == _COUNTS_FILE:
            return os.pread(fi.fh, size, offset)
        if self._apply(path, "fail"):
            raise OSError(errno.EIO, "")
        for fault in self._apply(path, "cut"):
            size = max(0, min(size, fault["size"] - offset))
        content = os.pread(fi.fh, size, offset)
        if content:
            for fault in self._apply(path, "alter", offset, offset + len(content)):
                changed = bytearray(content)
                changed[fault["offset"] - offset] ^= fault["bits"]
                content = bytes(changed)
        with self._lock:
            self._counts["bytes"] += len(content)
            self._counts["reads"] += 1
            file = self._files[fi.fh]
            if offset != file.end:
                self._end_run(file)
            file.end = offset + len(content)
            file.run += len(content)
        self._rate.take(len(content))
        return content

    def release(self, path: str, fi: Any) -> int:
        """Closes a file."""
        if path != _COUNTS_FILE:
            with self._lock:
                self._end_run(self._files.pop(fi.fh))
        os.close(fi.fh)
        return 0

    def _end_run(self, file: _File) -> None:
        if file.run:
            self._runs.append(file.run)
        file.run = 0


def _answer_all(files: ObservingFileSystem, answers: Any) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": getattr(files, request["method"])(**request["arguments"])}
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
    files.unmount()


def main(folder: str, mount_point: str) -> None:
    """Serves a folder until the input ends."""
    # The library may print; what it prints goes to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    files = ObservingFileSystem(folder, mount_point)
    threading.Thread(target=_answer_all, args=(files, answers), daemon=True).start()
    mfusepy.FUSE(files, mount_point, raw_fi=True, foreground=True, fsname="tfdear-observed")


if __name__ == "__main__":
    main(*sys.argv[1:])
