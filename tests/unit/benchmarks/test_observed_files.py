# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A folder behind a file system that counts what is read, and is slow or faulty on demand."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

from tfdear.benchmarks import observed_files
from tfdear.benchmarks.observed_files import ObservedFiles, ObservedFilesError, counts_of

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.newest_only,
    pytest.mark.skipif(
        observed_files.missing() is not None, reason=observed_files.missing() or "it is there"
    ),
]
_CONTENT = os.urandom(3_000_000)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "below"
    (path / "inner").mkdir(parents=True)
    (path / "inner" / "file").write_bytes(_CONTENT)
    (path / "small").write_bytes(b"0123456789")
    os.utime(path / "small", ns=(5, 1_234_567_890_123_456_789))
    return path


@pytest.fixture
def observed(folder):
    with ObservedFiles(folder) as observed:
        yield observed


def closed(observed):
    """What was counted, once the kernel has told of closed files."""
    deadline = time.monotonic() + 10
    while True:
        counts = observed.counts()
        if sum(counts.runs) == counts.bytes or time.monotonic() > deadline:
            return counts
        time.sleep(0.01)


def test_what_is_read_is_counted(observed):
    assert sorted(os.listdir(observed.path)) == ["inner", "small"]
    for _ in range(2):  # Nothing comes from memory.
        assert (observed.path / "inner" / "file").read_bytes() == _CONTENT
    with open(observed.path / "small", "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 3, 1) == b"123"
        assert os.pread(file.fileno(), 2, 4) == b"45"
        assert os.pread(file.fileno(), 4, 0) == b"0123"
    counts = closed(observed)
    assert counts.bytes == 2 * len(_CONTENT) + 9
    assert (counts.opens, counts.lists) == (3, 1)
    assert sorted(counts.runs) == [4, 5, len(_CONTENT), len(_CONTENT)]
    assert counts_of(observed.path) == observed.counts()
    observed.reset()
    assert observed.counts().bytes == 0


def test_sizes_and_times_are_those_of_the_files(observed, folder):
    seen = os.stat(observed.path / "small")
    assert (seen.st_size, seen.st_mtime_ns) == (10, 1_234_567_890_123_456_789)
    (folder / "small").write_bytes(b"longer than before")
    os.utime(folder / "small", ns=(7, 7))
    seen = os.stat(observed.path / "small")
    assert (seen.st_size, seen.st_mtime_ns) == (18, 7)
    with pytest.raises(OSError, match="Read-only"):
        (observed.path / "small").write_bytes(b"")


def test_reads_fail_and_are_altered_as_often_as_was_said(observed):
    small = observed.path / "small"
    observed.fail("inner/*", times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            (observed.path / "inner" / "file").read_bytes()
        assert small.read_bytes() == b"0123456789"
    assert (observed.path / "inner" / "file").read_bytes() == _CONTENT
    observed.alter("small", 3, bits=2, times=1)
    with open(small, "rb", buffering=0) as file:
        assert os.pread(file.fileno(), 3, 0) == b"012"
        assert os.pread(file.fileno(), 3, 2) == b"214"
        assert os.pread(file.fileno(), 3, 2) == b"234"
    observed.cut("sm*", 4)
    assert small.read_bytes() == b"0123"
    assert os.stat(small).st_size == 4
    observed.heal()
    assert small.read_bytes() == b"0123456789"


def test_a_rate_is_that_of_all_readers_together(observed):
    rate = 5e6
    observed.throttle(rate)
    begin = time.monotonic()
    command = ["cat", str(observed.path / "inner" / "file")]
    readers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [reader.wait(30) for reader in readers] == [0, 0]
    # A pause lets a twentieth of a second's bytes pass at once.
    assert time.monotonic() - begin >= 2 * len(_CONTENT) / rate - 0.1


def _is_mounted(path):
    return any(line.split()[1] == str(path) for line in open("/proc/mounts"))


def test_it_is_unmounted_whatever_happens(folder, tmp_path):
    with ObservedFiles(folder, tmp_path / "seen") as observed, open(observed.path / "small", "rb"):
        assert _is_mounted(tmp_path / "seen")
    assert not _is_mounted(tmp_path / "seen")
    program = """
        import os, sys
        from tfdear.benchmarks.observed_files import ObservedFiles
        observed = ObservedFiles(sys.argv[1], sys.argv[2])
        print((observed.path / "small").read_text(), flush=True)
        os.kill(os.getpid(), 9)
    """
    root = str(pathlib.Path(observed_files.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(map(str.strip, program.splitlines())), folder,
         tmp_path / "seen"],
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (-9, b"0123456789\n")
    deadline = time.monotonic() + 10
    while _is_mounted(tmp_path / "seen") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_mounted(tmp_path / "seen")


def test_what_cannot_be_mounted_is_told(folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        ObservedFiles(folder, tmp_path / "file")
    observed = ObservedFiles(folder)
    observed._process.kill()
    observed._process.wait(10)
    with pytest.raises(ObservedFilesError, match="has ended"):
        observed.counts()
    observed.close()
    assert not _is_mounted(observed.path)
