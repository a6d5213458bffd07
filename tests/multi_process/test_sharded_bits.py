# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How tables are held and exchanged, and when messages come, changes no bit of what is trained."""

import case_reports
import numpy as np
import pytest
from sharded_parity_job import OPTIMIZERS_OF_TOUCHED, STEPS

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

LONG = pytest.mark.long  # Three ranks divide nothing evenly.
_HELD = ("column", "row", "gathered", "summed", "switching")
_BOTH = ("nesterov", "adamw")
_DELAYS = {"TFDEAR_MAX_DELAY_MS": "3"}


@pytest.mark.parametrize(
    ("world_size", "optimizers"),
    [
        pytest.param(2, _BOTH, marks=LONG, id="2"),
        pytest.param(3, ("adamw",), id="3-adamw"),
        pytest.param(3, ("nesterov",), marks=LONG, id="3-nesterov"),
        pytest.param(4, _BOTH, marks=LONG, id="4"),
    ],
)
def test_partitions_exchanges_and_delays_change_no_bit(tmp_path, world_size, optimizers):
    (expected, *_), (delayed, *_) = (
        case_reports.run_job(
            "sharded_parity_job.py",
            world_size,
            tmp_path / ("delayed" if env else "plain"),
            cases=",".join(f"{name}:{held}" for name in optimizers for held in _HELD),
            env=env,
            timeout=250,
        )
        for env in (None, _DELAYS)
    )
    for name in optimizers:
        first = expected[f"{name}:{_HELD[0]}"]
        arrays = [key for key in first if key.startswith(("weight/", "slot/"))]
        assert len(arrays) >= 5
        # How rows travel, where all ranks have the tables whole.
        summed = {held: expected[f"{name}:{held}"]["summed_steps"] for held in _HELD}
        assert set(summed["gathered"]) == {0}
        assert set(summed["summed"]) == {STEPS}
        assert len(summed["switching"]) == 2
        assert all(0 < steps < STEPS for steps in summed["switching"])
        for report in (expected, delayed):
            for held in _HELD:
                for key in arrays:
                    value = report[f"{name}:{held}"][key]
                    # Equal but for the signs of zeros.
                    np.testing.assert_array_equal(value, first[key], f"{name}:{held} {key}")


@pytest.mark.parametrize(
    "world_size", [pytest.param(1, marks=LONG), 2, pytest.param(3, marks=LONG)]
)
def test_touched_rows_only_as_in_numpy(tmp_path, world_size):
    cases = ",".join(f"{name}:touched" for name in OPTIMIZERS_OF_TOUCHED)
    (expected,) = case_reports.run_job("sharded_parity_job.py", None, tmp_path, cases=cases)
    reports = case_reports.run_job("sharded_parity_job.py", world_size, tmp_path, cases=cases)
    for case, arrays in expected.items():
        case_reports.check_ranks_equal(reports, case)
        assert len(arrays) >= 4
        for key, wanted in arrays.items():
            worst = np.max(np.abs(reports[0][case][key] - wanted))
            # Of Adam's first steps, the powers of its betas are not exact in float32.
            assert worst <= 1e-5 * np.max(np.abs(wanted)), f"{case}: {key}: {worst:g}"
