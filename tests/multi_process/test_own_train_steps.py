# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Steps and losses that a script writes itself: under `fit`, one process is the reference."""

import functools

import case_reports
import pytest

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

CASES = (
    "adversaries",
    "autoencoder",
    "contrast",
    "distillation",
    "vision_transformer",
    "text_transformer",
    "sequences",
    "table",
    "by_hand",
)
ADAPTIVE = ("adaptive_adversaries", "adaptive_autoencoder", "adaptive_contrast")


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    @functools.cache
    def train_once(world_size, names):
        directory = tmp_path_factory.mktemp(f"ranks_{world_size}")
        return case_reports.run_job(
            "own_train_steps_job.py", world_size, directory, cases=",".join(names), timeout=400
        )

    return train_once


@pytest.mark.parametrize(
    ("case", "names"),
    [
        pytest.param(case, names, marks=marks, id=case)
        for names, marks in ((CASES, ()), (ADAPTIVE, pytest.mark.long))
        for case in names
    ],
)
@pytest.mark.parametrize(
    "world_size", [2, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 3))]
)
def test_one_process_is_the_reference(train, world_size, case, names):
    (reference,), reports = train(None, names), train(world_size, names)
    assert set(reports[0]) == set(reference) == set(names)
    tolerance = 1e-3 if case.startswith("adaptive") else 1e-5
    case_reports.check_ranks_equal(reports, case)
    case_reports.check_close(reports[0], reference, case, tolerance)
    case_reports.check_weights_close(reports[0], reference, case, tolerance)
