# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Histories and weights of 1 to 4 ranks against plain Keras on the same global batches."""

import functools

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
# World sizes, and what is trained there: on many ranks one case for each way to the sums.
ALL = tuple(TOLERANCES)
FEW = ("sgd", "normalization", "steps_per_execution", "adamw", "embedding")
WORLD_SIZES = {1: ALL, 2: ALL, 3: FEW, 4: FEW}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    directory = tmp_path_factory.mktemp("plain")
    return case_reports.run_job("parity_job.py", None, directory)[0]


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    @functools.cache
    def train_once(world_size):
        directory = tmp_path_factory.mktemp(f"ranks_{world_size}")
        cases = ",".join(WORLD_SIZES[world_size])
        return case_reports.run_job(
            "parity_job.py", world_size, directory, cases=cases, timeout=400
        )

    return train_once


@pytest.mark.parametrize(
    "world_size, case", [(size, case) for size, cases in WORLD_SIZES.items() for case in cases]
)
def test_parity(train, reference, world_size, case):
    reports = train(world_size)
    case_reports.check_ranks_equal(reports, case)
    if world_size == 1:
        case_reports.check_identical(reports[0], reference, case)
    counted = 1.5 / 23 if TOLERANCES[case] > 1e-4 else 1e-6
    case_reports.check_close(reports[0], reference, case, TOLERANCES[case], counted)
