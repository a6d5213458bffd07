# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What Keras checks of MirroredStrategy holds for DearStrategy on two ranks."""

import case_reports
import numpy as np
import pytest

pytestmark = [pytest.mark.multi_process]

WORLD_SIZE = 2


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    # The first case that fails ends the job; its traceback is in the error.
    directory = tmp_path_factory.mktemp("conformance")
    return case_reports.run_job("conformance_job.py", WORLD_SIZE, directory, timeout=180)


def test_cases_pass_and_ranks_agree(reports):
    for case in reports[0]:
        case_reports.check_ranks_equal(reports, case, ignore=("own",))


def test_ranks_draw_different_numbers(reports):
    drawn = [report["seed_generator"]["own drawn"] for report in reports]
    assert not np.array_equal(drawn[0], drawn[1])
    assert reports[0]["seed_generator"]["own state"] == 42
