# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What is done when a job ends is done once, in order, whatever becomes of parts of it."""

import subprocess
import sys

import pytest

from tfdear.base.ending import Ending

_SCRIPT = """
import atexit, os, sys
from tfdear.base.ending import Ending

def fail():
    raise ValueError("in the middle")

ending = Ending()
for action in (lambda: print("first"), fail, lambda: print("last")):
    ending.add(action)
atexit.register(print, "of the script")
if "closed" in sys.argv:
    try:
        ending.run()
    except ValueError as error:
        print("raised", error)
if (child := os.fork()) == 0:
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
"""


def test_actions_come_once_and_in_reverse_order():
    done = []
    ending = Ending()
    for number in range(3):
        ending.add(lambda number=number: done.append(number))
    ending.run()
    ending.run()
    assert done == [2, 1, 0]


def test_an_error_stops_no_other_action():
    done = []

    def fail():
        raise ValueError("first error")

    ending = Ending()
    for action in (lambda: done.append(0), fail, lambda: done.append(1)):
        ending.add(action)
    with pytest.raises(ValueError, match="first error"):
        ending.run()
    assert done == [1, 0]


@pytest.mark.parametrize(
    "argument, lines",
    [
        # What the script registered later may still use what the actions end. In the forked child
        # the actions are not done; its script's own handlers are.
        ("open", ["of the script", "of the script", "last", "first"]),
        ("closed", ["last", "first", "raised in the middle", "of the script", "of the script"]),
    ],
)
def test_the_exit_of_the_process_is_the_latest(argument, lines):
    ended = subprocess.run(
        [sys.executable, "-u", "-c", _SCRIPT, argument], capture_output=True, text=True, timeout=60
    )
    assert ended.stdout.splitlines() == lines, ended.stderr
    assert ("in the middle" in ended.stderr) == (argument == "open")


_CHILDREN = """
import multiprocessing, sys
from tfdear.base.ending import Ending

def work(how):
    ending = Ending()
    ending.add(lambda: print(how, repr(ending.failure), flush=True))
    if how == "raises":
        raise ValueError("no data")
    if how == "exits":
        sys.exit(3)
    if how == "closes":
        ending.run()

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    for how in ("returns", "raises", "exits", "closes"):
        try:
            raise KeyError("the parent handles it while it forks")
        except KeyError:
            child = context.Process(target=work, args=(how,))
            child.start()
        child.join()
        print(child.exitcode, flush=True)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_ends_as_others_do(method, tmp_path):
    script = tmp_path / "children.py"
    script.write_text(_CHILDREN)
    ended = subprocess.run(
        [sys.executable, script, method], capture_output=True, text=True, timeout=120
    )
    assert ended.stdout.splitlines() == [
        *("returns None", "0", "raises ValueError('no data')", "1"),
        *("exits None", "3", "closes None", "0"),
    ], ended.stderr
