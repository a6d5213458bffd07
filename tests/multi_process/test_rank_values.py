# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What is each rank's own in a step, and what is that of all ranks."""

import json
import pathlib

import numpy as np
import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(300)]

_JOB = pathlib.Path(__file__).parent / "jobs" / "rank_values_job.py"
_INPUTS = np.random.RandomState(3).randn(11, 2).astype("float32")


def _run(directory, **variables):
    path = directory / "report"
    for code, output in run_ranks(2, _JOB, variables, timeout=200, arguments=(str(path),)):
        assert code == 0, output[-4000:]
    return [json.loads(pathlib.Path(f"{path}.{rank}").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return _run(tmp_path_factory.mktemp("own"))


@pytest.mark.parametrize("how", ["graph", "nested", "eager"])
def test_random_numbers_of_a_step_differ_between_ranks(reports, how):
    first, second = (report["noise"][how] for report in reports)
    assert first != second


def test_random_numbers_outside_of_steps_are_the_same(reports):
    assert reports[0]["outside"] == reports[1]["outside"]


def test_shared_seeds_make_them_the_same(tmp_path):
    first, second = _run(tmp_path, TFDEAR_SHARED_SEEDS="1")
    assert first["noise"] == second["noise"]
    # Step after step they are others.
    assert first["noise"]["graph"][0] != first["noise"]["graph"][1]
    assert first["noise"]["eager"][0] != first["noise"]["eager"][1]


@pytest.mark.parametrize("how", ["gathered", "gathered eagerly"])
def test_a_rank_without_rows_returns_what_it_gathered(reports, how):
    for rank, report in enumerate(reports):
        full, last = report[how]
        assert full[0] == [0, 1, 2, 3] and full[3] == [6]
        assert last[0] == [4] and last[3] == [4]
        if how == "gathered":  # Eagerly it is not known where a value is from.
            assert full[1] == [0, 2, 4, 6] and last[1] == [8]
            # Its own rows are cut off.
            assert last[2] == ([4, 4] if rank == 1 else [])


def test_whole_numbers_in_logs_are_those_of_all_rows(reports):
    expected = {
        "step": 2,
        "rows": 5,
        "large": int((_INPUTS[6:, 0] > 0).sum()),
        "all": int((_INPUTS[6:, 0] > 0).sum()),
        "chosen": 7,
    }
    for report in reports:
        assert report["logs"] == expected


def test_a_data_set_that_nobody_needs_is_not_kept(reports):
    assert not any(report["kept"] for report in reports)
