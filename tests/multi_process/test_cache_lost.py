# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Whoever waits for an example of a rank that is lost hears of it as in collectives."""

import pathlib

import pytest
import ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(120)]
_JOB = pathlib.Path(__file__).parent / "jobs" / "cache_lost_job.py"


@pytest.mark.parametrize(
    ("signal", "nodes"),
    [
        ("SIGSTOP", 2),
        pytest.param("SIGSTOP", 1, marks=pytest.mark.long),
        pytest.param("SIGKILL", 2, marks=pytest.mark.long),
        ("SIGKILL", 1),
    ],
)
def test_a_lost_rank_is_named(signal, nodes):
    env = {"CASE_SIGNAL": signal, "TFDEAR_HEARTBEAT": "3"}
    with ranks.Ranks(
        2, _JOB, lambda rank: {**env, "TFDEAR_NODE_RANK": str(rank * (nodes - 1))}
    ) as job:
        codes = job.wait([0], timeout=60)
        output = job.output(0)
    assert codes[0] != 0
    assert "rank 1 (host" in output
