# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""When one rank fails in the middle of training, all others end with an error that names it."""

import pathlib
import re
import time

import pytest
import ranks as ranks_module

_JOB = pathlib.Path(__file__).parent / "jobs" / "failing_training.py"
_WORLD_SIZE = 3
_HEARTBEAT = 5

# What the survivors' error says after the victim's name, by the way the victim fails. Through
# rank 0 the ranks meet, which stops with it.
_SERVICE = ", through which the ranks meet, "
_WORDS = {
    "kill": f"({_SERVICE}| )was lost: it was killed or crashed",
    "stop": f"({_SERVICE}has not answered for| has not given a sign of life for)",
    "raise": " failed: RuntimeError: the disk is full",
    "exit": r" left the job \(its script ended\) while",
}


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("kind", "victim"),
    [
        *(("kill", 0), ("stop", 0), ("raise", 0), ("exit", 0)),
        # As in test_monitor.py, which has no training.
        *(pytest.param(*case, marks=pytest.mark.long) for case in (("kill", 1), ("stop", 2))),
        pytest.param("exit", 1, marks=pytest.mark.long),
    ],
)
def test_survivors_end_with_the_victims_name(kind, victim):
    job = ranks_module.Ranks(
        _WORLD_SIZE, _JOB, {"TFDEAR_HEARTBEAT": str(_HEARTBEAT)}, (kind, str(victim))
    )
    with job:
        job.wait_for_output(victim, "fails now", 120)
        failed = time.monotonic()
        survivors = [rank for rank in range(_WORLD_SIZE) if rank != victim]
        codes = job.wait(survivors, timeout=_HEARTBEAT + 5 + 15)
        print(f"{kind} of rank {victim}: survivors ended after {time.monotonic() - failed:.1f} s")
        for rank, code in zip(survivors, codes, strict=True):
            output = job.output(rank)
            assert code != 0, output
            assert "trained to the end" not in output
            name = rf"rank {victim} \(host \S+, pid {job.processes[victim].pid}\)"
            assert re.search(name + _WORDS[kind], output), output


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(120)
def test_ranks_that_call_different_collectives_all_hear_who_sent_what():
    results = ranks_module.run_ranks(
        _WORLD_SIZE, _JOB, {"TFDEAR_HEARTBEAT": str(_HEARTBEAT)}, 90, ("other_collective", "1")
    )
    for code, output in results:
        assert code != 0, output
        assert "rank 1: all_gather float[?,4]" in output, output
        assert "all_reduce" in output, output


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(120)
@pytest.mark.parametrize("method", ["evaluate", pytest.param("predict", marks=pytest.mark.long)])
def test_what_the_chief_does_alone_fails_with_the_rule(method):
    arguments = ("on_the_chief_alone", "0", method)
    (code, output), _ = ranks_module.run_ranks(2, _JOB, None, 90, arguments)
    assert code != 0 and "returned" not in output, output
    assert "left the job (its script ended)" in output, output
    rule = "are calls for all ranks: call them on every rank, not only on the chief"
    assert rule in output, output
