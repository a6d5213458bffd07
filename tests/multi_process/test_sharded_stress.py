# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Nothing waits in a circle, whenever messages come, and nothing grows in many steps."""

import ast
import pathlib

import pytest
import ranks

_JOB = pathlib.Path(__file__).parent / "jobs" / "sharded_stress_job.py"

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]


def lines_of(world_size, beginning, *arguments, timeout, delay=0):
    """The lines of each rank that begin so."""
    environment = {"TFDEAR_MAX_DELAY_MS": str(delay)}
    results = ranks.run_ranks(world_size, _JOB, environment, timeout, arguments)
    assert [code for code, _ in results] == [0] * world_size, [out[-3000:] for _, out in results]
    return [
        [line for line in output.splitlines() if line.startswith(beginning)]
        for _, output in results
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("world_size", "first", "count"),
    [(3, 0, 3), *(pytest.param(4, first, 25, marks=pytest.mark.long) for first in (0, 25, 50, 75))],
)
def test_no_circle_with_delays_and_a_slow_rank(world_size, first, count):
    arguments = ("runs", str(first), str(count))
    runs = lines_of(world_size, "run ", *arguments, timeout=800, delay=4)
    assert len(runs[0]) == count
    assert all(each == runs[0] for each in runs)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world_size", [2, 4])
def test_many_steps_take_no_more_memory(world_size):
    for lines in lines_of(world_size, "resident: ", "steps", "2000", timeout=800):
        (line,) = lines
        resident = ast.literal_eval(line.removeprefix("resident: "))
        assert len(resident) == 20
        print([round(each / 1e6, 1) for each in resident])
        # The journal of updates, which has a limit, and pools fill in the first steps.
        assert resident[-1] - resident[9] <= 4e6, resident
