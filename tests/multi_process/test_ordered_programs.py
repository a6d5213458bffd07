# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What ranks do in another order is never added up; what differs without harm is let through."""

import pathlib

import pytest
import ranks as ranks_module

_JOB = pathlib.Path(__file__).parent / "jobs" / "ordered_job.py"


def run(kind):
    return ranks_module.run_ranks(2, _JOB, {"TFDEAR_HEARTBEAT": "5"}, 90, (kind,))


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("creation", ("rank 0: broadcast float[8,8] of 'left/kernel'", "'right/kernel'")),
        (
            "gradients",
            ("sends the gradient of", "left/kernel float32(8, 8)", "right/kernel float32(8, 8)"),
        ),
        ("given_up", ("ranks call different collectives", "has given up a step")),
    ],
)
def test_another_order_is_an_error(kind, words):
    for code, output in run(kind):
        assert code != 0, output
        assert "reached the end" not in output
        for expected in words:
            assert expected in output, output


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.timeout(120)
def test_differences_without_harm_are_let_through():
    for code, output in run("alike"):
        assert code == 0, output
        assert "reached the end" in output
