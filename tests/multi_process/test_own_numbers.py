# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a step draws, writes, counts in branches or accumulates is the same on all ranks."""

import functools
import json
import pathlib

import numpy as np
import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(300)]
THREE = pytest.param(3, marks=pytest.mark.long)

_JOB = pathlib.Path(__file__).parent / "jobs" / "own_numbers_job.py"
_X = np.random.RandomState(3).randn(24, 2).astype("float32")


@pytest.fixture(scope="module")
def reports_of(tmp_path_factory):
    @functools.cache
    def run(world_size):
        path = tmp_path_factory.mktemp(f"ranks_{world_size}") / "report"
        for code, output in run_ranks(world_size, _JOB, {}, timeout=200, arguments=(str(path),)):
            assert code == 0, output[-4000:]
        reports = [pathlib.Path(f"{path}.{rank}").read_text() for rank in range(world_size)]
        return [json.loads(report) for report in reports]

    return run


@pytest.mark.parametrize("world_size", [2, THREE])
def test_all_ranks_log_and_hold_the_same(reports_of, world_size):
    first, *others = reports_of(world_size)
    for other in others:
        for name, expected in first.items():
            assert other[name] == expected, name


def test_logs_of_noise_are_means_of_the_ranks(reports_of):
    history = reports_of(2)[0]["noisy"]
    for values in history.values():
        assert len(set(values)) == 2


@pytest.mark.parametrize("world_size", [1, 2, THREE])
def test_a_moving_average_is_logged_as_that_of_all(reports_of, world_size):
    (logs,) = [report["moving"] for report in reports_of(world_size)[:1]]
    np.testing.assert_allclose(logs["before"], [1.0])
    np.testing.assert_allclose(logs["after"], [0.5 + _X.mean()], rtol=1e-5)


@pytest.mark.parametrize("world_size", [1, 2, THREE])
def test_numbers_of_python_are_logged_as_means(reports_of, world_size):
    for values in reports_of(world_size)[0]["floats"].values():
        np.testing.assert_allclose(values, [_X.mean()], rtol=1e-5)


@pytest.mark.parametrize("world_size", [2, THREE])
def test_variables_with_the_aggregation_mean_are_averaged(reports_of, world_size):
    expected = (world_size + 1) / 2
    assert reports_of(world_size)[0]["averaged"] == {"trainable": expected, "weight": expected}


@pytest.mark.parametrize("world_size", [1, 2, THREE])
def test_metrics_in_a_branch_that_some_ranks_take(reports_of, world_size):
    # Rank 0 has the rows 5 and 0, which it counts twice more; the others have zeros.
    rows = 2 * world_size + 4
    assert reports_of(world_size)[0]["branches"] == pytest.approx(
        {
            "in the step": 15 / rows,
            "in a branch": 5,
            "inner": 5,
            "sibling": 5,
            "counter": 15 / rows,
            "count": rows,
            "always": 5 / (2 * world_size),
            "statistic": 5 / world_size,
        }
    )


@pytest.mark.parametrize("clip", ["clipnorm", "global_clipnorm", "clipvalue"])
@pytest.mark.parametrize("world_size", [2, THREE])
def test_accumulated_gradients_are_clipped_as_others(reports_of, world_size, clip):
    found, expected = (np.array(reports_of(size)[0][clip]) for size in (world_size, 1))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(found - found[:1], 0, atol=1e-6)
    assert (found < 1.2).all() and (found > 1.0).all()


@pytest.mark.parametrize("world_size", [1, 2])
def test_updates_draw_for_every_variable_and_alike_on_all_ranks(reports_of, world_size):
    first, second = reports_of(world_size)[0]["noisy weights"]
    assert first != second


def test_an_update_that_draws_by_a_generator_of_its_own_is_refused(reports_of):
    assert "shared_seeds=True" in reports_of(2)[0]["seeded"]


@pytest.mark.parametrize("world_size", [2, THREE])
def test_histories_of_float8_are_those_of_all_rows(reports_of, world_size):
    found, expected = (reports_of(size)[0]["float8"] for size in (world_size, 1))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert max(found) > 0
