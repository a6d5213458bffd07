# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank that dies while the job starts is named by all others, soon."""

import itertools
import pathlib
import re
import signal
import time

import pytest
from ranks import Ranks

_JOB = pathlib.Path(__file__).parent / "jobs" / "dying_start.py"
_WORLD_SIZE = 3
_HEARTBEAT = 3
# What the promise is about: a heartbeat and five seconds after the death everybody knows.
_SECONDS = _HEARTBEAT + 5

_PHASES = ("announced", "agreed", "groups", "memory", "seeds", "links")


def _check(phase, victim):
    """Kills the victim in a phase of the start; returns when the last survivor named it."""
    environment = {"TFDEAR_HEARTBEAT": str(_HEARTBEAT)}
    with Ranks(_WORLD_SIZE, _JOB, environment, (phase, str(victim))) as job:
        job.wait_for_output(victim, "dies now", 90)
        died = time.monotonic()
        pid = job.processes[victim].pid
        survivors = [rank for rank in range(_WORLD_SIZE) if rank != victim]
        name = rf"rank {victim} (\(host \S+, pid {pid}\)|at {job.coordinator},)"
        while not all(re.search(name, job.output(rank)) for rank in survivors):
            assert time.monotonic() < died + 60, [job.output(rank) for rank in survivors]
            time.sleep(0.05)
        seconds = time.monotonic() - died
        codes = job.wait(survivors, timeout=30)
        assert codes == [1] * len(survivors), [job.output(rank) for rank in survivors]
        assert job.wait([victim], timeout=10) == [-signal.SIGKILL]
        for rank in survivors:
            assert "the job stands" not in job.output(rank)
    return seconds


@pytest.mark.multi_process
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("phase", "victim"),
    [
        ("announced", 2),
        pytest.param("announced", 0, marks=pytest.mark.long),
        ("agreed", 1),
        pytest.param("groups", 2, marks=pytest.mark.long),
        ("groups", 0),
        *(pytest.param(phase, 1, marks=pytest.mark.newest_only) for phase in ("memory", "links")),
    ],
)
def test_rank_that_dies_in_the_start_is_named(phase, victim):
    seconds = _check(phase, victim)
    print(f"{phase}: rank {victim} was named after {seconds:.1f} s")
    assert seconds < _SECONDS


@pytest.mark.long
@pytest.mark.multi_process
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("phase", _PHASES)
def test_it_is_named_fifty_times_of_fifty(phase):
    seconds = [_check(phase, v) for v in itertools.islice(itertools.cycle((0, 1, 2)), 50)]
    print(f"{phase}: named after {min(seconds):.1f} to {max(seconds):.1f} s")
    assert max(seconds) < _SECONDS
