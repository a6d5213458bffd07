# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A training with sharded tables that crashed goes on as if nothing had been."""

import pathlib

import numpy as np
import pytest
import ranks

_JOB = pathlib.Path(__file__).parent / "jobs" / "sharded_resume_job.py"


def run(directory, world_size, task):
    results = ranks.run_ranks(world_size, _JOB, timeout=150, arguments=(str(directory), task))
    assert [code for code, _ in results] == [0] * world_size, [out[-3000:] for _, out in results]
    if task == "crash":
        return None
    stored = [np.load(directory / f"{task}_{rank}.npz") for rank in range(world_size)]
    return [[report[name] for name in report.files] for report in stored]


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_crash_and_resume_is_the_uninterrupted_run(tmp_path):
    expected, *_ = run(tmp_path, 3, "train")
    assert len(expected) == 4 + 1 + 8
    run(tmp_path, 3, "crash")
    for found in run(tmp_path, 3, "resume"):
        for value, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
    assert not (tmp_path / "backup").exists()
