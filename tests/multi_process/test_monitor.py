# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""One rank of three fails in every way there is; the others must say who and why, and end."""

import pathlib
import re
import signal
import time

import pytest
from ranks import Ranks, run_ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only]

JOB = pathlib.Path(__file__).parents[1] / "helpers/watched_job.py"
HEARTBEAT = 4
# Hard limit of the promise: a survivor has ended heartbeat + 5 s after the fault. The rest is
# for a machine that is busy with other things.
LIMIT = HEARTBEAT + 5 + 10


def fail(victim, fault, number=None, variables=()):
    """Runs the job; returns the exit codes and outputs after the fault."""
    env = {"TFDEAR_HEARTBEAT": str(HEARTBEAT), **dict(variables)}
    with Ranks(3, JOB, env, arguments=(str(victim), fault)) as ranks:
        for rank in range(3):
            ranks.wait_for_output(rank, "training", 90)
        if number is not None:
            ranks.processes[victim].send_signal(number)
        survivors = [rank for rank in range(3) if rank != victim]
        ranks.wait(survivors, timeout=LIMIT)
        if number is None and fault != "busy":
            ranks.wait(timeout=LIMIT)
        codes = [process.poll() for process in ranks.processes]
        return codes, [ranks.output(rank) for rank in range(3)], ranks.processes[victim].pid


FAULTS = {
    "kill": ("none", signal.SIGKILL, "was lost: it was killed or crashed"),
    "stop": ("none", signal.SIGSTOP, "stopped, or"),
    "exception": ("exception", None, "failed: ValueError: the data set is empty"),
    "exit": ("exit", None, "left the job (its script ended) while"),
}


# test_training_failures.py has more of rank 0, in a training.
@pytest.mark.parametrize(
    "kind, victim",
    [
        *((kind, 1) for kind in ("kill", "exception")),
        *((kind, 1) for kind in ("stop", "exit")),
        ("kill", 0),
        *(pytest.param(kind, 0, marks=pytest.mark.long) for kind in FAULTS if kind != "kill"),
    ],
)
def test_survivors_name_the_rank(kind, victim):
    fault, number, words = FAULTS[kind]
    codes, outputs, pid = fail(victim, fault, number)
    for rank in range(3):
        if rank == victim:
            continue
        error = outputs[rank].rsplit("AbortedError: ", 1)[-1]
        assert codes[rank] == 1, outputs[rank]
        assert f"rank {victim} (host " in error and f"pid {pid})" in error
        assert words in error
        assert "was in all_reduce float32[10] (#" in error or fault in ("exception", "exit")
    if fault == "exception":
        assert codes[victim] == 1
        assert "ValueError: the data set is empty" in outputs[victim]


def test_different_collectives_are_shown_to_every_rank():
    codes, outputs, _ = fail(1, "different")
    assert codes == [1, 1, 1]
    for output in outputs:
        assert "ranks call different collectives: " in output
        assert "ranks 0, 2: all_reduce float32[10]; rank 1: all_gather float32[10] (#" in output


def test_rank_that_does_not_come():
    codes, outputs, _ = fail(1, "busy", variables={"JOB_TIMEOUT": "6"})
    for rank in (0, 2):
        assert codes[rank] == 1
        assert "was not complete after 6 s" in outputs[rank]
        assert "Rank 1 did not come: rank 1 is alive but waits in no collective" in outputs[rank]


def test_a_rank_says_what_it_waits_for_when_it_is_asked():
    # Rank 1 sleeps in one call, so that no handler of Python's would run there.
    with Ranks(3, JOB, {"JOB_TIMEOUT": "60"}, arguments=("1", "busy")) as ranks:
        for rank in (0, 1):
            ranks.wait_for_output(rank, "training", 90)
        for number, words in {
            0: r"For \d+\.\d s it is in all_reduce float32\[10\] \(#31 in group world\)\. "
            r"rank 1 is alive but waits in no collective\.\n",
            1: r"It is in no collective\.\n",
        }.items():
            asked = f"rank {number} (host "
            end = time.monotonic() + 60  # Until rank 1 sleeps, and rank 0 waits for it.
            while not re.search(words, output := ranks.output(number)):
                assert time.monotonic() < end, output
                ranks.processes[number].send_signal(signal.SIGUSR1)
                time.sleep(2)
            assert re.search(re.escape(asked) + r".* was asked what it waits for", output)
            assert re.search(words, output), output
            assert re.search(r'File ".*watched_job\.py", line \d+ in main', output), output
            # It goes on.
            assert ranks.processes[number].poll() is None


def test_rank_that_cannot_be_reached_by_an_abort_ends_itself():
    # The busy rank sleeps in one call, as a rank does that hangs in a driver or a file system.
    variables = {"JOB_TIMEOUT": "4", "JOB_CLEANUP_TIMEOUT": "3"}
    with Ranks(3, JOB, variables, arguments=("1", "busy")) as ranks:
        assert ranks.wait(timeout=90) == [1, 70, 1]
        assert "rank 1 did not react to the end of the job" in ranks.output(1)
        assert "cleanup_timeout 3 s" in ranks.output(1)


def test_rank_that_writes_a_checkpoint_may_finish_it(tmp_path):
    variables = {
        "JOB_TIMEOUT": "4",
        "JOB_CLEANUP_TIMEOUT": "2",
        "JOB_CHECKPOINT": str(tmp_path / "checkpoint"),
    }
    with Ranks(3, JOB, variables, arguments=("1", "save")) as ranks:
        assert ranks.wait(timeout=90) == [1, 1, 1], ranks.output(1)
        assert "written" in ranks.output(1)
    assert (tmp_path / "checkpoint.index").exists()


def test_job_that_ends_well_says_nothing():
    for code, output in run_ranks(3, JOB, arguments=("-1", "done")):
        assert code == 0, output
        assert "tfdear" not in output.split("training")[1]


def test_swallowed_error_still_gives_a_code():
    script = f"""
import os, sys, time
sys.path.insert(0, {str(JOB.parent)!r})
import watched_job
meeting, engine, watch = watched_job.start()
try:
    if meeting.rank == 1:
        os.kill(os.getpid(), 9)
    while True:
        engine.collective("all_reduce float32[10]")
except watched_job.AbortedError:
    print("swallowed", flush=True)
"""
    results = run_ranks(3, script)
    assert [code for code, _ in results] == [1, -9, 1]
    assert all("swallowed" in results[rank][1] for rank in (0, 2))


def test_rank_0_may_end_long_before_the_others():
    script = f"""
import sys, time
sys.path.insert(0, {str(JOB.parent)!r})
import watched_job
meeting, engine, watch = watched_job.start()
engine.collective("barrier")
if meeting.rank != 0:
    time.sleep(18)  # evaluates, saves, ...: longer than rank 0 waits for it
    print("finished", flush=True)
"""
    results = run_ranks(3, script, {"TFDEAR_HEARTBEAT": "5"})
    assert [code for code, _ in results] == [0, 0, 0], results
    assert all("finished" in results[rank][1] for rank in (1, 2))


def test_a_rank_that_ends_while_rank_0_holds_its_interpreter_is_not_lost():
    script = f"""
import ctypes, sys, time
sys.path.insert(0, {str(JOB.parent)!r})
import watched_job
meeting, engine, watch = watched_job.start()
engine.collective("barrier")
if meeting.rank == 0:
    ctypes.PyDLL(None).usleep(4_000_000)  # As a C extension does; nothing of Python's runs.
if meeting.rank == 1:
    time.sleep(0.5)
else:
    end = time.monotonic() + 30
    while not meeting.has_left(1) and watch.healthy and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(1)  # A loss would end the job.
    print("rank 1:", meeting.store.told("monitor/left").get("1"), watch.healthy, flush=True)
"""
    results = run_ranks(3, script, {"TFDEAR_HEARTBEAT": "10"})
    assert [code for code, _ in results] == [0, 0, 0], results
    for rank in (0, 2):
        assert 'rank 1: {"aborted": false, "failed": false} True' in results[rank][1]


def test_a_rank_that_fails_while_rank_0_holds_its_interpreter_is_heard():
    script = f"""
import ctypes, sys, time
sys.path.insert(0, {str(JOB.parent)!r})
import watched_job
meeting, engine, watch = watched_job.start()
engine.collective("barrier")
if meeting.rank == 0:
    ctypes.PyDLL(None).usleep(8_000_000)  # As a C extension does; nothing of Python's runs.
if meeting.rank == 1:
    time.sleep(0.5)
    raise ValueError("the data set is empty")
engine.collective("all_reduce")
"""
    results = run_ranks(3, script, {"TFDEAR_HEARTBEAT": "30"})
    assert [code for code, _ in results] == [1, 1, 1], results
    for rank in (0, 2):
        error = results[rank][1].rsplit("AbortedError: ", 1)[-1]
        assert re.search(r"rank 1 \(host .*failed: ValueError: the data set is empty", error), error
