# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Weights that differ between ranks are found where ranks meet, and the first one is named."""

import case_reports
import pytest

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]


@pytest.fixture(scope="module", params=(pytest.param(2, marks=pytest.mark.long), 3))
def reports(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(f"ranks_{request.param}")
    env = {"TFDEAR_CHECK_EVERY": "2"}
    return case_reports.run_job("consistency_job.py", request.param, directory, env=env)


def found(reports, case, key="found"):
    """What all ranks were told, which is the same."""
    words = {str(report[case][key]) for report in reports}
    assert len(words) == 1, words
    return words.pop()


def test_a_loop_compares_what_is_trained_at_its_first_step(reports):
    assert "/first/kernel:0`; 1 of" in found(reports, "first_step")


def test_weights_loaded_by_the_chief_are_named_by_fit_and_evaluate(reports):
    for key in ("fit", "again", "evaluate"):
        words = found(reports, "loaded_by_the_chief", key)
        assert "/first/kernel`" in words and "broadcast_variables" in words
        assert str([[0], list(range(1, len(reports)))]) in words
    assert found(reports, "loaded_by_the_chief", "mended") == ""
    case_reports.check_ranks_equal(reports, "loaded_by_the_chief")


def test_one_bit_is_found_and_no_false_alarm_is_raised(reports):
    assert found(reports, "last_bit", "fine") == ""
    assert "moving_variance`; 1 of" in found(reports, "last_bit")
    assert found(reports, "last_bit", "mended") == ""


def test_training_compares_every_so_many_steps(reports):
    assert "/last/bias`; 1 of" in found(reports, "while_training")
    assert {int(report["while_training"]["steps"]) for report in reports} == {4}


def test_a_loop_compares_every_so_many_steps(reports):
    for kind in ("eager", "compiled"):
        assert "/last/bias:0`; 1 of" in found(reports, "in_a_loop", kind)
        assert {int(report["in_a_loop"][f"{kind} steps"]) for report in reports} == {4}
        assert found(reports, "in_a_loop", f"{kind} mended") == ""


def test_ranks_with_other_variables_are_told(reports):
    # Each rank shows its own.
    assert all("do not have the same variables" in str(r["other_models"]["found"]) for r in reports)
    assert "`root` must be a rank" in found(reports, "other_models", "root")
