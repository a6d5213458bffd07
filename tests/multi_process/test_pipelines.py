# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""No example of a pipeline is lost or repeated, whatever its order, on 2 and 3 ranks."""

import case_reports
import numpy as np
import pytest

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]


@pytest.fixture(scope="module", params=(2, pytest.param(3, marks=pytest.mark.long)))
def reports(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(f"ranks_{request.param}")
    return case_reports.run_job("pipeline_job.py", request.param, directory, timeout=240)


def together(reports, case, key):
    return np.sort(np.concatenate([report[case][key] for report in reports]))


@pytest.mark.parametrize("case", ("records_in_any_order", "order_ignored_by_option"))
def test_every_row_of_records_in_any_order_is_seen_once(reports, case):
    every = np.arange(1, 1001)
    np.testing.assert_array_equal(together(reports, case, "fit"), np.repeat(every, 2))
    np.testing.assert_array_equal(together(reports, case, "evaluate"), every)
    for report in reports:
        np.testing.assert_array_equal(np.sort(report[case]["predict"]), every)


@pytest.mark.parametrize("case", ("sharded_by_hand", "no_data_on_rank_1"))
@pytest.mark.parametrize("call", ("fit", "evaluate", "predict", "loop", "arrays"))
def test_data_that_differ_between_ranks_are_refused_before_a_step(reports, case, call):
    for rank, report in enumerate(reports):
        message = str(report[case][call])
        assert message.startswith(f"Rank {rank}: the ranks do not"), message
        assert "AutoShardPolicy.OFF" in message
        assert "distribute_datasets_from_function" in message
        assert report[case]["seen"] == 0


def test_ragged_sparse_and_text_batches_are_cut_without_loss(reports):
    every = np.repeat(np.arange(1, 26), 2)
    case = "every_form"
    np.testing.assert_array_equal(together(reports, case, "seen"), every)
    for report in reports:
        seen = report[case]["seen"]
        np.testing.assert_array_equal(report[case]["words"], seen)
        np.testing.assert_array_equal(report[case]["sparse"], seen % 5)
        np.testing.assert_array_equal(report[case]["sums"], seen * (seen - 1) // 2)


def test_random_contents_of_the_same_examples_are_no_difference(reports):
    every = np.arange(1, 49)
    np.testing.assert_array_equal(together(reports, "drawn_numbers", "fit"), np.repeat(every, 2))
    for report in reports:
        np.testing.assert_array_equal(report["drawn_numbers"]["predict"], every)


def test_looking_at_the_first_batch_takes_nothing_away(reports):
    every = np.arange(1, 49)
    np.testing.assert_array_equal(together(reports, "steps_at_a_time", "fit"), np.repeat(every, 3))
    np.testing.assert_array_equal(together(reports, "generated", "fit"), np.arange(1, 73))


@pytest.mark.parametrize("count", ("16/1", "17/1", "37/1", "16/3"))
def test_policy_off_uses_all_that_the_ranks_have_sharded(reports, count):
    rows, repeats = map(int, count.split("/"))
    every = np.repeat(np.arange(1, rows + 1), repeats)
    fitted = together(reports, "own_rows", f"{count}/fit")
    np.testing.assert_array_equal(fitted, np.repeat(every, 2))
    np.testing.assert_array_equal(together(reports, "own_rows", f"{count}/evaluate"), every)
    for report in reports:
        np.testing.assert_array_equal(np.sort(report["own_rows"][f"{count}/predict"]), every)


def test_policy_off_without_an_end(reports):
    every = np.arange(1, 17)
    # Every rank has all rows: two batches of 8, each in as many steps as there are ranks.
    for report in reports:
        np.testing.assert_array_equal(np.sort(report["own_rows"]["endless"]), np.repeat(every, 2))


def test_own_datasets_of_different_lengths_end_together(reports):
    every = np.arange(1, len(reports) * 10 - 5)
    fitted = together(reports, "own_datasets", "fit")
    np.testing.assert_array_equal(fitted, np.repeat(every, 2))
    np.testing.assert_array_equal(together(reports, "own_datasets", "evaluate"), every)
    for report in reports:
        np.testing.assert_array_equal(np.sort(report["own_datasets"]["predict"]), every)


def test_endless_data_beside_finite_ones_are_refused(reports):
    for report in reports:
        assert "Some ranks have endless data sets" in str(report["own_datasets"]["endless"])
