# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank that dies while the job starts is named by all others, soon."""

import itertools
import pathlib
import re
import signal
import time

import pytest
from ranks import Ranks, run_ranks

_JOB = pathlib.Path(__file__).parent / "jobs" / "dying_start.py"
_WORLD_SIZE = 3
_HEARTBEAT = 3
# What the promise is about: a heartbeat and five seconds after the death everybody knows.
_SECONDS = _HEARTBEAT + 5
# Beside other tests survivors have to get a core first; still far from any other deadline.
_BUSY_SECONDS = 15

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
    assert seconds < _SECONDS + _BUSY_SECONDS


@pytest.mark.long
@pytest.mark.multi_process
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("phase", _PHASES)
def test_it_is_named_fifty_times_of_fifty(phase):
    seconds = [_check(phase, v) for v in itertools.islice(itertools.cycle((0, 1, 2)), 50)]
    print(f"{phase}: named after {min(seconds):.1f} to {max(seconds):.1f} s")
    assert max(seconds) < _SECONDS


_WITHOUT_THREADS = """
import os, pathlib, resource
import tfdear
from tfdear.engine.engine import Engine

start = Engine.start

def start_without_threads(*arguments, **options):
    # Root may start any number of threads, but each needs memory for its stack.
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * os.sysconf("SC_PAGE_SIZE") + (4 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        start(*arguments, **options)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

if os.environ["TFDEAR_RANK"] == "1":
    Engine.start = start_without_threads
tfdear.DearStrategy()
"""


@pytest.mark.multi_process
@pytest.mark.newest_only
def test_a_rank_that_cannot_start_its_threads_says_so():
    results = run_ranks(3, _WITHOUT_THREADS, {"TFDEAR_HEARTBEAT": str(_HEARTBEAT)})
    assert [code for code, _ in results] == [1] * 3, results
    words = "this rank cannot start another thread"
    assert f"TfdearError: {words}" in results[1][1], results[1][1]
    for rank in (0, 2):
        assert re.search(rf"rank 1 \(.* failed: TfdearError: {words}", results[rank][1]), results


_INTERRUPTED = """
import os
import tfdear
from tfdear.job import seeds

share = seeds.share

def interrupt(agree):
    if os.environ["TFDEAR_RANK"] == "0":
        raise KeyboardInterrupt
    share(agree)

seeds.share = interrupt
for _ in range(2):  # As in a notebook, which lives on.
    try:
        tfdear.DearStrategy(init_timeout=60)
    except BaseException as error:
        print("SEEN", type(error).__name__, str(error), flush=True)
"""


@pytest.mark.multi_process
@pytest.mark.newest_only
def test_an_interrupt_in_the_start_closes_the_job_and_is_told_to_the_others():
    results = run_ranks(2, _INTERRUPTED, {"TFDEAR_HEARTBEAT": str(_HEARTBEAT)})
    assert [code for code, _ in results] == [1] * 2, results
    seen = [re.findall(r"SEEN (.*)", output) for _, output in results]
    assert [len(of_rank) for of_rank in seen] == [2, 2], results
    assert seen[0][0].startswith("KeyboardInterrupt"), seen
    assert re.search(r"rank 0 \(host .* failed: KeyboardInterrupt", seen[1][0]), seen
    for of_rank in seen:
        assert "Start the process again" in of_rank[1] and "KeyboardInterrupt" in of_rank[1], seen
