# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Strangers that connect to a cache's ranks are refused, and change nothing."""

import json
import pathlib

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(400)]
_JOB = pathlib.Path(__file__).parent / "jobs" / "cache_strangers_job.py"


def _run(directory, connections):
    directory.mkdir()
    results = run_ranks(
        2,
        _JOB,
        lambda rank: {"TFDEAR_NODE_RANK": str(rank)},
        timeout=300,
        arguments=(str(directory), str(connections)),
    )
    for code, output in results:
        assert code == 0, output[-3000:]
    return [json.loads((directory / f"rank_{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("connections", [300, pytest.param(5000, marks=pytest.mark.long)])
def test_strangers_change_nothing(tmp_path, connections):
    undisturbed = _run(tmp_path / "undisturbed", 0)
    bothered = _run(tmp_path / "bothered", connections)
    for report, expected in zip(bothered, undisturbed, strict=True):
        assert report["weights"] == expected["weights"]
        assert report["statistics"]["fetched"] == expected["statistics"]["fetched"] > 0
        assert report["statistics"]["refused"] > connections / 2
        assert expected["statistics"]["refused"] == 0
