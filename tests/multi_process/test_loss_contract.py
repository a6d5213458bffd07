# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""However a step takes its loss, `fit` gives the numbers of one process."""

import functools

import case_reports
import numpy as np
import pytest

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

CASES = (
    "mean_8",
    "mean_20",
    "sum_object_20",
    "mixture_8",
    "regularizer_8",
    "eager",
    "several_steps",
    "self_scaled",
    "function_of_loss",
    "average_loss",
    "accumulated",
    "uneven_parts",
    "uneven_last_parts",
    "compiled",
    "add_loss",
    "add_loss_of_rows",
    "on_batch",
    "loop",
    "loop_of_parts",
)
# The same with other losses and optimizers, and combinations of these.
VARIANTS = (
    "reduce_mean_8",
    "function_8",
    "object_8",
    "sum_object_8",
    "adam",
    "function_of_sum",
    "self_scaled_beside_a_function",
    "accumulated_scaled",
    "compiled_sum",
    "loop_in_scope",
    "eager_loop",
)
WARNINGS = ("summed_in_run", "eager_losses", "sums_by_hand")
SEVERAL = (2, pytest.param(3, marks=pytest.mark.long))
WORLD_SIZES = (pytest.param(1, marks=pytest.mark.long), *SEVERAL)
# A step that scales by itself logs its share of the loss, as under TensorFlow's strategies.
LOGS_ITS_SHARE = ("self_scaled", "self_scaled_beside_a_function", "average_loss", "on_batch")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    @functools.cache
    def run_once(world_size, names):
        directory = tmp_path_factory.mktemp(f"ranks_{world_size}")
        return case_reports.run_job(
            "loss_contract_job.py", world_size, directory, cases=",".join(names)
        )

    return run_once


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(
    ("case", "names"),
    [
        pytest.param(case, names, marks=marks, id=case)
        for names, marks in ((CASES, ()), (VARIANTS, pytest.mark.long))
        for case in names
    ],
)
def test_numbers_are_those_of_one_process(reports, case, names, world_size):
    reference = reports(None, names)[0]
    case_reports.check_ranks_equal(reports(world_size, names), case)
    tolerance = 1e-3 if case in ("adam", "loop", "loop_in_scope", "eager_loop") else 1e-5
    ignore = ("history/",) if case in LOGS_ITS_SHARE else ()
    report = reports(world_size, names)[0]
    case_reports.check_close(report, reference, case, tolerance, ignore=ignore)
    for key, expected in reference[case].items():
        if key.startswith("weight/"):
            np.testing.assert_allclose(
                report[case][key], expected, rtol=tolerance, atol=tolerance, err_msg=key
            )


@pytest.mark.parametrize("world_size", SEVERAL)
def test_run_sums_gradients_and_says_so_once(reports, world_size):
    for rank, report in enumerate(reports(world_size, WARNINGS)):
        outcome = report["summed_in_run"]
        assert outcome["warned"] == (1 if rank == 0 else 0)
        np.testing.assert_allclose(outcome["bias"], [-2.0 * world_size], rtol=1e-6)
    assert reports(1, WARNINGS)[0]["summed_in_run"]["warned"] == 0


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_sum_over_rows_by_hand_is_warned_of_once(reports, world_size):
    for rank, report in enumerate(reports(world_size, WARNINGS)):
        warned = {name: int(count) for name, count in report["sums_by_hand"].items()}
        for name in ("reduce_sum", "scaled_sum"):
            assert warned.pop(name) == (1 if rank == 0 and world_size > 1 else 0), name
        assert len(warned) == 5 and not any(warned.values()), warned


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_what_run_eagerly_hides_is_said_once(reports, world_size):
    for rank, report in enumerate(reports(world_size, WARNINGS)):
        once = 1 if rank == 0 and world_size > 1 else 0
        assert {name: int(count) for name, count in report["eager_losses"].items()} == {
            "own step": once,
            "single value": once,
            "add_loss": once,
            "object": 0,
            "losses of rows": 0,
        }
