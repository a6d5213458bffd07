# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A rank that is killed or stopped within a part of a step with tables is named by the others."""

import pathlib
import re

import keras
import numpy as np
import pytest
import ranks as ranks_module

_JOB = pathlib.Path(__file__).parent / "jobs" / "sharded_failures_job.py"
_WORLD_SIZE = 3
_HEARTBEAT = 5
# As in `test_training_failures`.
_WORDS = {
    "SIGKILL": r"(, through which the ranks meet, | )was lost: it was killed or crashed",
    "SIGSTOP": r"(, through which the ranks meet, has not answered for"
    "| has not given a sign of life for)",
}
_PARTS = ("ids", "vectors", "rows", "save")
# One of each part, and both signals and rank 0 among them.
_USUAL = {("SIGKILL", "ids", 1), ("SIGSTOP", "vectors", 2), ("SIGKILL", "rows", 0)}
_USUAL |= {("SIGSTOP", "save", 1), ("SIGKILL", "save", 2)}


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("signal", "part", "victim"),
    [
        pytest.param(*case, marks=() if case in _USUAL else pytest.mark.long)
        for case in [(s, p, v) for s in _WORDS for p in _PARTS for v in range(_WORLD_SIZE)]
    ],
)
def test_survivors_end_with_the_victims_name(tmp_path, signal, part, victim):
    def environment(rank):
        # Nothing but the victim's heartbeat, or its connections, may end the waits of the others.
        given = {"TFDEAR_HEARTBEAT": str(_HEARTBEAT), "TFDEAR_TIMEOUT": "90"}
        # Its collectives take so long that it surely is in one when it fails.
        slow = rank == victim and part != "save"
        return given | ({"TFDEAR_MAX_DELAY_MS": "100"} if slow else {})

    arguments = (signal, part, str(victim), str(tmp_path))
    with ranks_module.Ranks(_WORLD_SIZE, _JOB, environment, arguments) as job:
        job.wait_for_output(victim, "fails now", 120)
        survivors = [rank for rank in range(_WORLD_SIZE) if rank != victim]
        # Less than the timeout of collectives; much of it is for a busy machine.
        codes = job.wait(survivors, timeout=60)
        for rank, code in zip(survivors, codes, strict=True):
            output = job.output(rank)
            assert code != 0, output
            assert "came to the end" not in output
            name = rf"rank {victim} \(host \S+, pid {job.processes[victim].pid}\)"
            assert re.search(name + _WORDS[signal], output), output
    if part == "save":
        # The file that was there before is there, and whole.
        loaded = keras.models.load_model(tmp_path / "model.keras")
        assert all(np.isfinite(value).all() for value in loaded.get_weights())
        # Who is killed leaves what it was writing; who fails, nothing.
        assert victim == 0 or [path.name for path in tmp_path.iterdir()] == ["model.keras"]
