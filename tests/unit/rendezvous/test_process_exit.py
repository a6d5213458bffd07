# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How the process of a failed job ends: its code, and what it still writes."""

import os
import subprocess
import sys

import pytest

BEGIN = """
import sys, threading, time
from tfdear.rendezvous import process_exit

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
"""
# As from Python 3.12 on among the exit handlers.
NO_THREADS = "threading.Thread.start = refuse"
# The main thread is in a write to a pipe that nobody reads, as it writes more than that holds.
STUCK = """
def leave():
    time.sleep(0.5)
    {first}
    process_exit.leave_now(70, "the last message")

threading.Thread(target=leave, daemon=True).start()
while True:
    sys.{stream}.write("x" * 1000)
"""


def start(script):
    # With buffers, of which a thread in a write holds the lock.
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", BEGIN + script], env=environ, **pipes)


@pytest.mark.parametrize("first", ["", NO_THREADS])
def test_what_was_printed_is_written(first):
    at_exit = start(f"{first}\nprocess_exit.leave_without_teardown(3)\nprint('the end', end='')")
    now = start(f"{first}\nprint('the end', end='')\nprocess_exit.leave_now(70, 'the message')")
    closed = start(f"{first}\nsys.stderr.close(); print(1)\nprocess_exit.leave_now(70, 'message')")
    assert at_exit.communicate(timeout=60) == ("the end", "")
    assert now.communicate(timeout=60) == ("the end", "the message\n")
    assert closed.communicate(timeout=60) == ("1\n", "")
    assert [process.returncode for process in (at_exit, now, closed)] == [3, 70, 70]


def test_a_forked_process_that_is_asked_to_leave_does():
    # As a launcher that imports the package and forks the ranks; and a child of a rank.
    rank = """
if os.fork() == 0:
    process_exit.leave_without_teardown(3)
    if os.fork() == 0:
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 5
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
"""
    process = start(f"import os\n{rank}")
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0


@pytest.mark.parametrize(
    "stream, first, code",
    [
        ("stdout", "", 70),
        ("stderr", "", 70),
        ("stdout", NO_THREADS, 1),
    ],
)
def test_nobody_need_read_what_was_printed(stream, first, code):
    process = start(STUCK.format(stream=stream, first=first))
    try:
        assert process.wait(timeout=60) == code
        if stream == "stdout":
            assert process.stderr.read() == "the last message\n"
    finally:
        process.kill()
        process.communicate()
