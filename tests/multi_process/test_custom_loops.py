# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Loops around `strategy.run`, and data sets of unknown length, on 3 ranks against one process."""

import case_reports
import pytest

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

CASES = (
    "step_in_a_function",
    "epoch_in_a_function",
    "compiled_step",
    "traces_differ",
    "functions_of_functions",
    "gradients_of_functions",
    "aggregations",
    "eager_step",
    "unknown_length",
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return case_reports.run_job("loop_job.py", None, tmp_path_factory.mktemp("plain"))[0]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return case_reports.run_job("loop_job.py", 3, tmp_path_factory.mktemp("ranks"), timeout=180)


@pytest.mark.parametrize("case", CASES)
def test_as_in_one_process(reports, reference, case):
    case_reports.check_ranks_equal(reports, case)
    case_reports.check_close(reports[0], reference, case, 1e-5)
