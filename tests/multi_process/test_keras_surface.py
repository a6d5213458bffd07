# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Features of `fit`, `evaluate` and `predict` on several ranks, against plain Keras."""

import itertools

import case_reports
import numpy as np
import pytest

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

TOLERANCES = {
    "run_eagerly": 1e-5,
    "on_batch": 1e-5,
    "accumulation": 1e-5,
    "moving_average": 1e-5,
    "loss_scale": 1e-5,
    "jit_compile": 0.0,
    "example_weights": 1e-5,
    "dict_inputs": 1e-5,
    "subclassed": 1e-5,
    "callbacks": 1e-4,
    "logs": 0.0,
    "data_forms": 1e-5,
    "extra_losses": 1e-5,
    "summed_loss": 1e-4,
    "many_metrics": 1e-4,
    "mixed_precision": 1e-2,
    "fit_again": 1e-3,
    "recurrent": 1e-4,
    "stateful": 1e-4,
    "sparse_inputs": 1e-5,
    "counts": 1e-5,
}
# What plain Keras does on whole batches is something else here, by design.
ONLY_BETWEEN_RANKS = ("clipping", "normalization", "dropout", "generator_again")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return case_reports.run_job("surface_job.py", None, tmp_path_factory.mktemp("plain"))[0]


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.long)])
def directory_and_reports(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(f"ranks_{request.param}")
    return directory, case_reports.run_job("surface_job.py", request.param, directory, timeout=400)


@pytest.fixture(scope="module")
def directory(directory_and_reports):
    return directory_and_reports[0]


@pytest.fixture(scope="module")
def reports(directory_and_reports):
    return directory_and_reports[1]


@pytest.mark.parametrize("case", TOLERANCES)
def test_as_in_one_process(reports, reference, case):
    case_reports.check_ranks_equal(reports, case)
    tolerance = TOLERANCES[case]
    case_reports.check_close(reports[0], reference, case, tolerance, ignore=("ranks only",))


@pytest.mark.parametrize("case", ONLY_BETWEEN_RANKS)
def test_between_ranks(reports, case):
    case_reports.check_ranks_equal(reports, case, ignore=("mask",))
    for key, value in reports[0][case].items():
        if value.dtype.kind == "f":
            assert np.isfinite(value).all(), key


def test_refuses_xla(reports):
    assert all(report["jit_compile"]["refused"] for report in reports)


def test_skips_the_step_that_overflows(reports):
    # Two epochs of five steps, one of which overflows each time.
    assert reports[0]["loss_scale"]["steps"] == 8


def test_a_generator_goes_on_where_it_was(reports):
    numbers = reports[0]["generator_again"]["numbers"].ravel()
    np.testing.assert_array_equal(numbers, [8] * 7 + [9] * 7)


def test_dropout_masks_differ(reports):
    masks = [report["dropout"]["mask"] for report in reports]
    assert not any((one == next_one).all() for one, next_one in itertools.pairwise(masks))


def test_callbacks_stopped_early(reports):
    result = reports[0]["callbacks"]
    assert 0 < result["stopped"] < 11 and result["rates"][-1] < result["rates"][0]
    assert "backup" not in result["files"] and "best.keras" in result["files"]


def test_logs_are_written_by_rank_0_alone(reports, directory):
    assert all(report["logs"]["calls"].tolist() == [0, 1] for report in reports)
    files = [path for path in (directory / "logs").rglob("*") if path.is_file()]
    events = [path.parent.name for path in files if "tfevents" in path.name]
    assert sorted(events) == ["train", "validation"]
    names = sorted(path.name for path in files if path.suffix == ".csv")
    assert names == ["log.csv", *(f"own{rank}.csv" for rank in range(len(reports)))]
    assert len((directory / "logs" / "log.csv").read_text().splitlines()) == 3


def test_logs_of_every_rank_in_a_folder_of_its_own(tmp_path):
    env = {"TFDEAR_LOG_PER_RANK": "1"}
    case_reports.run_job("surface_job.py", 2, tmp_path, cases="logs", env=env)
    logs = tmp_path / "logs"
    for rank in range(2):
        events = (logs / "board" / f"rank_{rank}").glob("*/*tfevents*")
        assert sorted(path.parent.name for path in events) == ["train", "validation"]
        assert len((logs / f"rank_{rank}" / "log.csv").read_text().splitlines()) == 3
    assert {path.name for path in logs.iterdir()} == {
        "board", "rank_0", "rank_1", "own0.csv", "own1.csv",
    }  # fmt: skip
