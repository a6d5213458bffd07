# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A step with a sharded table sends little more than its words' vectors, gradients and ids."""

import json
import os
import pathlib

import lab_ranks
import pytest

from tfdear.benchmarks import lab as netlab

_JOB = pathlib.Path(__file__).parent / "jobs" / "table_bytes.py"


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(150)
@pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root")
@pytest.mark.parametrize(
    ("world_size", "columns", "partition", "policy", "schedule"),
    [
        pytest.param(2, 512, "column", "float32", "2d", marks=pytest.mark.long),
        (3, 500, "column", "float32", "2d"),
        pytest.param(3, 500, "column", "float32", "none", marks=pytest.mark.long),
        pytest.param(4, 100, "column", "float32", "2d", marks=pytest.mark.long),
        pytest.param(4, 512, "column", "mixed_bfloat16", "2d", marks=pytest.mark.long),
        (3, 100, "row", "float32", "2d"),
    ],
)
def test_a_step_sends_vectors_gradients_and_ids(
    world_size, columns, partition, policy, schedule, tmp_path
):
    with netlab.temporary(world_size, rate=None) as lab:
        arguments = [str(tmp_path / "sent.json"), str(columns), partition, policy]
        lab_ranks.run(
            lab, _JOB, arguments, tmp_path, {"TFDEAR_EMBEDDING_SCHEDULE": schedule}, timeout=120
        )
    reports = [json.loads((tmp_path / f"sent.{rank}").read_text()) for rank in range(world_size)]
    ratios = [round(report["sent"] / report["bound"], 4) for report in reports]
    print(world_size, columns, partition, policy, ratios, reports)
    assert max(ratios) <= 1.05
    for report in reports:
        assert report["hint"] == ("next batch" if schedule == "2d" else "none")
        assert (report["delayed"] > 0) == (report["early_vectors"] > 0) == (schedule == "2d")
