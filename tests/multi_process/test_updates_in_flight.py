# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Program order decides what every use of a variable sees, however late its updates are."""

import pathlib

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(400)]

_JOB = pathlib.Path(__file__).parent / "jobs" / "updates_in_flight_job.py"
# What is late: nothing but what the case itself delays, updates by some of the time of a step, or
# the first exchange of rows by much more, over connections that are made for it.
_AT_ONCE: dict[str, str] = {}
_LATE = {"TFDEAR_MAX_DELAY_MS": "100"}
_VERY_LATE = {"TFDEAR_MAX_DELAY_MS": "500", "TFDEAR_SHARED_MEMORY": "0"}


@pytest.mark.parametrize(
    "world_size, env, cases",
    [
        (
            3,
            _AT_ONCE,
            (
                "averages_replace_a_table_that_others_still_read",
                "reads_after_an_assignment_have_it_of_all_ranks",
            ),
        ),
        (
            2,
            _LATE,
            (
                "a_function_assigns_a_slot_of_a_table",
                "a_function_reads_a_slot_of_a_plain_table",
                "an_update_writes_through_a_handle",
                "an_update_reads_a_slot_that_is_assigned_after_it",
            ),
        ),
        # Whoever frees a model holds Python, which connections need.
        (2, _VERY_LATE, ("a_model_is_deleted_right_after_a_step",)),
        pytest.param(
            2,
            _AT_ONCE,
            ("a_table_lets_go_of_the_slots_of_former_optimizers",),
            marks=pytest.mark.long,
        ),
    ],
)
def test_uses_see_what_is_before_them(world_size, env, cases):
    for code, output in run_ranks(world_size, _JOB, env, timeout=300, arguments=cases):
        assert code == 0, output[-4000:]
        for case in cases:
            assert f"passed: {case}" in output, output[-4000:]
