# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Histories and weights of 1 to 4 ranks against plain Keras on the same global batches."""

import case_reports
import pytest

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

# Adaptive optimizers divide by gradients that may be tiny, which amplifies rounding.
TOLERANCES = {
    "sgd": 1e-5,
    "normalization": 1e-5,
    "steps_per_execution": 1e-5,
    "adam": 1e-3,
    "adamw": 1e-3,
    "rmsprop": 1e-3,
    "lamb": 1e-3,
    "lion": 1e-3,
    "adafactor": 1e-3,
    "embedding": 1e-5,
    "embedding_adam": 1e-3,
}
WORLD_SIZES = (1, 2, 3, 4)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    directory = tmp_path_factory.mktemp("plain")
    return case_reports.run_job("parity_job.py", None, directory)[0]


@pytest.fixture(scope="module", params=WORLD_SIZES)
def reports(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(f"ranks_{request.param}")
    return case_reports.run_job("parity_job.py", request.param, directory, timeout=400)


@pytest.mark.parametrize("case", TOLERANCES)
def test_parity(reports, reference, case):
    case_reports.check_ranks_equal(reports, case)
    if len(reports) == 1:
        case_reports.check_identical(reports[0], reference, case)
    counted = 1.5 / 23 if TOLERANCES[case] > 1e-4 else 1e-6
    case_reports.check_close(reports[0], reference, case, TOLERANCES[case], counted)
