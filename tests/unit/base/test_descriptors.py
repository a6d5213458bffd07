# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How many files and connections a rank may have open. In processes of their own."""

import subprocess
import sys

import pytest

_RAISED = """
import resource, sys
from tfdear.base import descriptors

resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
descriptors.raise_limit()
print(descriptors.limit())
"""

# A rank that cannot open another connection says so at once, and blames nobody.
_NONE_LEFT = """
import os, resource, time
from tfdear import errors
from tfdear.rendezvous import data_connections

class Directory:
    world_size, number = 2, b"n" * 16

    def publish(self, name, value):
        pass

    def look_up(self, name, rank, timeout, other_than=None):
        return '["127.0.0.1", 1]'

    def check(self, rank):
        pass

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
connections = data_connections.DataConnections(1, "127.0.0.1", None, Directory(), 60.0)
connections._address_of = lambda rank: ("127.0.0.1", 1)
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
begin = time.monotonic()
try:
    connections.connect(0, [0], range(1))
except errors.TfdearError as error:
    seconds, kind, text = time.monotonic() - begin, error.kind, str(error)
for descriptor in held:
    os.close(descriptor)
print(seconds < 30, kind, text)
"""


def _run(script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("hard, expected", [(64, 64), (100, 100), (500, 500)])
def test_the_limit_is_raised(hard, expected):
    assert _run(_RAISED, str(hard)) == str(expected)


def test_who_can_open_no_connection_says_so():
    line = _run(_NONE_LEFT)
    assert line.startswith("True resource_exhausted rank 1 cannot open another connection"), line
    assert "Too many open files" in line and "64 files" in line
