# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Histories and weights of 1 to 4 ranks against plain Keras on the same global batches."""

import functools
import importlib.metadata

import case_reports
import pytest

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

OPTIMIZERS = (
    "sgd",
    "adam",
    "adamw",
    "rmsprop",
    "adagrad",
    "adadelta",
    "adamax",
    "nadam",
    "ftrl",
    "lion",
    "lamb",
    "adafactor",
    "muon",
    "loss_scale",
    "lars",
    "layer_adaptive_moments",
)
# Muon of Keras before 3.13 fails on TensorFlow by itself, also without a strategy.
KERAS = tuple(int(part) for part in importlib.metadata.version("keras").split(".")[:2])
if KERAS < (3, 13):
    OPTIMIZERS = tuple(name for name in OPTIMIZERS if name != "muon")
# With evaluation, prediction and metrics; whose P = 1 is plain Keras, bit for bit.
WHOLE = ("whole", "whole_adamw", "normalization", "steps_per_execution")
CASES = (*OPTIMIZERS, *WHOLE)


def tolerance(case):
    """Adaptive optimizers divide by gradients that may be tiny, which amplifies rounding."""
    return 1e-5 if case in ("sgd", "whole", "normalization", "steps_per_execution") else 1e-3


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    directory = tmp_path_factory.mktemp("plain")
    return case_reports.run_job("parity_job.py", None, directory)[0]


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    @functools.cache
    def train_once(world_size, names):
        directory = tmp_path_factory.mktemp(f"ranks_{world_size}")
        return case_reports.run_job(
            "parity_job.py", world_size, directory, cases=",".join(names), timeout=500
        )

    return train_once


# With one rank there is little to go wrong.
@pytest.mark.parametrize(
    ("world_size", "case", "names"),
    [
        pytest.param(size, case, names, marks=marks, id=f"{size}-{case}")
        for size, names, marks in (
            (3, CASES, ()),
            (1, WHOLE, pytest.mark.long),
            (1, OPTIMIZERS, pytest.mark.long),
            (2, CASES, pytest.mark.long),
            (4, CASES, pytest.mark.long),
        )
        for case in names
    ],
)
def test_parity(train, reference, world_size, case, names):
    reports = train(world_size, names)
    assert set(reports[0]) == set(names) and set(reference) == set(CASES)
    case_reports.check_ranks_equal(reports, case)
    if world_size == 1 and case in WHOLE:
        case_reports.check_identical(reports[0], reference, case)
    counted = 1.5 / 23 if tolerance(case) > 1e-4 else 1e-6
    case_reports.check_close(reports[0], reference, case, tolerance(case), counted)
    case_reports.check_weights_close(reports[0], reference, case, tolerance(case))
