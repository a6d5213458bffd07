# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Random lookups in sharded tables and their gradients are NumPy's in float64."""

import json
import pathlib

import pytest
import ranks as ranks_module

_JOB = pathlib.Path(__file__).parent / "jobs" / "sharded_lookups_job.py"
_TOLERANCE = 1e-6


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.slow
@pytest.mark.parametrize(
    ("world_size", "first", "count"),
    [
        (3, 300, 30),
        *(pytest.param(size, 75 * (size - 1), 75, marks=pytest.mark.long) for size in (1, 2, 3, 4)),
    ],
)
def test_random_lookups(world_size, first, count):
    results = ranks_module.run_ranks(
        world_size, _JOB, timeout=250, arguments=(str(first), str(count))
    )
    assert [code for code, _ in results] == [0] * world_size, [out[-3000:] for _, out in results]
    for _, output in results:
        reports = [json.loads(line) for line in output.splitlines() if line.startswith('{"case"')]
        assert {report["case"] for report in reports} == set(range(first, first + count))
        for report in reports:
            assert report["shape"], report
            assert report["value"] <= _TOLERANCE, report
            assert report["gradient"] <= _TOLERANCE, report
