# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Arguments, collectives and variables of a step, on 1, 2 and 3 ranks against one process."""

import case_reports
import pytest

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

AS_ONE_PROCESS = (
    "class_weights_first",
    "contrastive",
    "left_out",
    "other_written_parts",
    "gathered_in_an_update",
    "reset_with_ranks_left_out",
    "read_in_flight",
)
BIT_FOR_BIT = ("counters", "digits")
AS_MIRRORED = ("written_parts", "own_values", "metrics_that_assign")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return case_reports.run_job("step_values_job.py", None, tmp_path_factory.mktemp("plain"))[0]


@pytest.fixture(
    scope="module", params=[2, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 3))]
)
def reports(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(f"ranks_{request.param}")
    return case_reports.run_job("step_values_job.py", request.param, directory)


@pytest.mark.parametrize("case", AS_ONE_PROCESS)
def test_as_in_one_process(reports, reference, case):
    case_reports.check_ranks_equal(reports, case)
    case_reports.check_close(reports[0], reference, case, 1e-5)


@pytest.mark.parametrize("case", BIT_FOR_BIT)
def test_bit_for_bit_as_in_one_process(reports, reference, case):
    case_reports.check_ranks_equal(reports, case)
    case_reports.check_identical(reports[0], reference, case)


@pytest.mark.parametrize("case", AS_MIRRORED)
def test_as_with_as_many_replicas_of_a_mirrored_strategy(reports, reference, case):
    case_reports.check_ranks_equal(reports, case)
    expected = {k: v for k, v in reference[case].items() if k.startswith(f"{len(reports)} ")}
    case_reports.check_close(reports[0], {case: expected}, case, 1e-6)
