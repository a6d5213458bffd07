# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""LARS and LAMB with norms taken in parallel: against NumPy, against `parallel=False`."""

import case_reports
import layer_adaptive_job as job
import layer_adaptive_reference as reference
import numpy as np
import pytest

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

LONG = pytest.mark.long
STEPS = ("lars", "lamb", "lars_excluded", "lamb_excluded")
FITS = ("fit", "scaled", "accumulated", "eager", "restored", "embedding")
SOME_FITS = ("accumulated", "restored")
SCHEDULES = {
    "wfbp": {"TFDEAR_SCHEDULE": "wfbp"},
    "sequential": {"TFDEAR_SCHEDULE": "sequential"},
    "bytescheduler": {"TFDEAR_SCHEDULE": "bytescheduler"},
    "tree": {"TFDEAR_COLLECTIVE": "tree"},
    "hierarchical": {"TFDEAR_COLLECTIVE": "hierarchical"},
    "torus2d": {"TFDEAR_COLLECTIVE": "torus2d"},
    "delays": {"TFDEAR_MAX_DELAY_MS": "3"},
}


def cases(names):
    return ",".join(name + suffix for name in names for suffix in ("", "_alone"))


def expected(case):
    excluded = case.endswith("_excluded")
    without = ("dense_bias", "gamma") if excluded else ()
    arguments = dict(job.LARS if case.startswith("lars") else job.LAMB)
    decay = arguments.pop("weight_decay")
    function = reference.lars if case.startswith("lars") else reference.lamb
    return function(
        job.weights(),
        [job.gradients(step) for step in range(job.STEPS)],
        **arguments,
        decays=[0.0 if name in without else decay for name in job.SHAPES],
        adapts=[not excluded or name != "dense_bias" for name in job.SHAPES],
    )


def check_steps(reports, names=STEPS, suffixes=("", "_alone")):
    for case in names:
        for suffix in suffixes:
            case_reports.check_ranks_equal(reports, case + suffix, ignore=("own/",))
            for place, value in enumerate(expected(case)):
                np.testing.assert_allclose(
                    reports[0][case + suffix][f"weight/{place}"],
                    value,
                    rtol=1e-6,
                    atol=1e-6,
                    err_msg=f"{case}{suffix}: {list(job.SHAPES)[place]}",
                )


def check_shared(reports, case):
    """Every rank read about its part of what all together had to read."""
    read = [int(report[case]["own/norm_bytes"]) for report in reports]
    skipped = "dense_bias" if case.endswith("_excluded") else None
    elements = sum(np.prod(s, dtype=int) for name, s in job.SHAPES.items() if name != skipped)
    arrays = 2 if case.startswith("lars") else 4
    assert sum(read) == job.STEPS * elements * 4 * arrays
    assert max(read) < 1.02 * sum(read) / len(read)
    for report in reports:
        assert report[case]["own/norms"] >= job.STEPS
        assert report[case + "_alone"]["own/norms"] == 0


# Three ranks divide nothing evenly.
@pytest.mark.parametrize(
    "world_size",
    [3, *(pytest.param(size, marks=LONG) for size in (1, 2, 4))],
)
def test_steps_against_numpy(world_size, tmp_path):
    reports = case_reports.run_job(
        "layer_adaptive_job.py", world_size, tmp_path, cases=cases(STEPS), timeout=300
    )
    check_steps(reports)
    if world_size > 1:
        for case in STEPS:
            check_shared(reports, case)


@LONG
@pytest.mark.parametrize(
    "schedule",
    SCHEDULES,
)
def test_schedules(schedule, tmp_path):
    names = ("lars", "lamb")
    # Small buckets, so that layers reach over their borders and some buckets have several layers.
    variables = {"TFDEAR_BUCKET_BYTES": "300000", **SCHEDULES[schedule]}
    two_nodes = schedule == "torus2d"

    def environment(rank):
        return variables | ({"TFDEAR_NODE_RANK": str(rank // 2)} if two_nodes else {})

    reports = case_reports.run_job(
        "layer_adaptive_job.py",
        4 if two_nodes else 3,
        tmp_path,
        cases=",".join(names),
        env=environment,
        timeout=300,
    )
    check_steps(reports, names, suffixes=("",))
    for case in names:
        assert reports[0][case]["own/norms"] >= job.STEPS


@pytest.mark.parametrize(
    "world_size, optimizer, fits",
    [
        pytest.param(2, "lars", FITS, marks=LONG, id="2-lars"),
        pytest.param(3, "lamb", SOME_FITS, marks=LONG, id="3-lamb-some"),
        pytest.param(3, "lamb", FITS, marks=LONG, id="3-lamb"),
        pytest.param(2, "lamb", FITS, marks=LONG, id="2-lamb"),
    ],
)
def test_trainings_as_without_parallel_norms(world_size, optimizer, fits, tmp_path):
    names = [f"{optimizer}_{fit}" for fit in fits]
    reports = case_reports.run_job(
        "layer_adaptive_job.py", world_size, tmp_path, cases=cases(names), timeout=400
    )
    for case in names:
        case_reports.check_ranks_equal(reports, case)
        case_reports.check_ranks_equal(reports, case + "_alone")
        for key, value in reports[0][case + "_alone"].items():
            if key.startswith("weight/"):
                np.testing.assert_allclose(
                    reports[0][case][key], value, rtol=2e-5, atol=2e-6, err_msg=f"{case}: {key}"
                )


@pytest.mark.parametrize("world_size", [3, *(pytest.param(size, marks=LONG) for size in (2, 4))])
def test_parallel_tensor_operator(world_size, tmp_path):
    reports = case_reports.run_job(
        "layer_adaptive_job.py", world_size, tmp_path, cases="operator", timeout=200
    )
    case_reports.check_ranks_equal(reports, "operator", ignore=("own/",))
    # Nobody did all of it.
    assert max(int(report["operator"]["own/most"]) for report in reports) < len(job.SHAPES) + 3
