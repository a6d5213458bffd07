# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Tables of `keras.layers.Embedding`: by rows they become what they become as a whole."""

import case_reports
import numpy as np
import plain_tables_job as job
import pytest

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

_TOLERANCE = 2e-6  # Of the largest element: a sum of several terms is rounded in other places.


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return case_reports.run_job(
        "plain_tables_job.py", 2, tmp_path_factory.mktemp("plain"), timeout=280
    )


@pytest.mark.parametrize("name", job.NAMES)
def test_rows_are_what_they_are_in_a_whole_table(reports, name):
    rows, whole = (reports[0][f"{name}:{kind}"] for kind in ("rows", "whole"))
    ignored = ("predicted", "served", "slot")
    case_reports.check_ranks_equal(reports, f"{name}:rows", ignore=ignored)
    compared = [key for key in whole if not key.startswith(("count/", "seen/summed"))]
    assert len(compared) >= 3
    for key in compared:
        assert rows[key].shape == whole[key].shape, key
        worst = np.max(np.abs(rows[key].astype("float64") - whole[key]), initial=0)
        largest = np.max(np.abs(whole[key]), initial=0)
        assert worst <= _TOLERANCE * largest, f"{name}: {key}: {worst:g} of {largest:g}"


def test_no_step_reads_the_whole_table(reports):
    counts = reports[0]["loop:rows"]
    assert counts["count/DearTableLookup"] >= 1, "the table was not found in the graph"
    assert "count/ReadVariableOp" not in counts
    whole = reports[0]["loop:whole"]
    assert whole["count/ResourceGather"] >= 1
    assert "count/ReadVariableOp" not in whole


def test_exported_folders_load_without_tfdear(reports):
    for kind in ("rows", "whole"):
        result = reports[0][f"exported:{kind}"]
        assert result["dear"] == 0
        np.testing.assert_allclose(result["served"], result["predicted"], rtol=1e-6)


def test_one_rank_gathers_on_the_variable(tmp_path):
    (report,) = case_reports.run_job(
        "plain_tables_job.py", 1, tmp_path, cases="loop:rows", timeout=200
    )
    counts = report["loop:rows"]
    assert counts["count/ResourceGather"] >= 1
    assert "count/ReadVariableOp" not in counts
