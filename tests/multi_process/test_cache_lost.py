# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Whoever waits for an example of a rank that is lost hears of it as in collectives."""

import pathlib

import numpy as np
import pytest
import ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(120)]
_JOB = pathlib.Path(__file__).parent / "jobs" / "cache_lost_job.py"


LONG = pytest.mark.long
# From before the first example is prepared to long after the last one is.
MOMENTS = np.random.default_rng(16).uniform(0.0, 8.0, 20).round(2)


@pytest.mark.parametrize(
    ("signal", "nodes", "after"),
    [
        ("SIGSTOP", 2, 2.0),
        pytest.param("SIGSTOP", 1, 2.0, marks=LONG),
        pytest.param("SIGKILL", 2, 2.0, marks=LONG),
        ("SIGKILL", 1, 2.0),
        *(pytest.param("SIGSTOP", 2, after, marks=LONG) for after in MOMENTS),
    ],
)
def test_a_lost_rank_is_named(signal, nodes, after):
    env = {"CASE_SIGNAL": signal, "CASE_AFTER": str(after), "TFDEAR_HEARTBEAT": "3"}
    with ranks.Ranks(
        2, _JOB, lambda rank: {**env, "TFDEAR_NODE_RANK": str(rank * (nodes - 1))}
    ) as job:
        codes = job.wait([0], timeout=60)
        output = job.output(0)
    assert codes[0] != 0
    assert "rank 1 (host" in output
    # All of it is longer than the latest moment.
    assert "through" not in output
