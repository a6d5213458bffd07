# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Sharded tables in all the ways in which Keras trains models: as whole tables do."""

import functools

import case_reports
import pytest
import sharded_edges_job as job

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

# Relative; layers beside the tables have gradients that cancel.
_TOLERANCE = 1e-5
CASES = tuple(name for name in job.CASES if not name.endswith("_whole"))
# With one rank there is little to go wrong, with four only the division of tables differs.
FEW = ("few_columns", "few_rows", "no_ids", "accumulation_by_row", "constraint", "clipnorm")
# Combinations of what other cases show one by one, and the same with other limits or types.
VARIANTS = (
    *(name for name in CASES if name.startswith("accumulation_") and name not in FEW),
    *("clipvalue", "constraint_average", "float16", "global_clipnorm", "one_row_by_row"),
    *("of_a_branch_by_row", "of_a_branch_plain", "of_a_function_plain"),
)
OTHERS = tuple(name for name in CASES if name not in FEW + VARIANTS)


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Trains some cases once with a number of ranks, or without a strategy."""

    @functools.cache
    def train_once(world_size, names):
        directory = tmp_path_factory.mktemp(f"sharded_{world_size}")
        cases = [name for name in job.CASES if name.removesuffix("_whole") in names]
        if world_size is None:
            cases = [name for name in names if name not in job.OF_EACH_RANK]
        return case_reports.run_job(
            "sharded_edges_job.py", world_size, directory, cases=",".join(cases), timeout=540
        )

    return train_once


@pytest.mark.parametrize(
    ("world_size", "case", "names"),
    [
        pytest.param(size, case, names, marks=marks, id=f"{size}-{case}")
        for size, names, marks in (
            (2, FEW, ()),
            (2, OTHERS, pytest.mark.newest_only),
            (1, FEW, pytest.mark.long),
            (1, OTHERS + VARIANTS, pytest.mark.long),
            (2, VARIANTS, pytest.mark.long),
            (3, CASES, pytest.mark.long),
            (4, FEW, pytest.mark.long),
        )
        for case in names
    ],
)
def test_as_whole_tables(train, world_size, case, names):
    # All numbers of ranks are compared with the same trainings.
    (group,) = (group for group in (FEW, OTHERS, VARIANTS) if case in group)
    check(train(world_size, names), train(None, group)[0], case)


@pytest.mark.newest_only
def test_reads_wait_for_the_last_sums_of_gradients(train, tmp_path):
    # After the last step a change is in flight that writes the sums and not the table.
    case, delay = "accumulation_unfinished", {"TFDEAR_MAX_DELAY_MS": "300"}
    reports = case_reports.run_job("sharded_edges_job.py", 2, tmp_path, cases=case, env=delay)
    check(reports, train(None, (case,))[0], case)


def check(reports, reference, case):
    of_each = case in job.OF_EACH_RANK
    expected = reports[0][f"{case}_whole"] if of_each else reference[case]
    if case == "chief_reads":
        reports = reports[:1]
    case_reports.check_ranks_equal(reports, case)
    (report, expected) = ({case: reports[0][case]}, {case: expected})
    case_reports.check_close(report, expected, case, 1e-4, ignore=("slot", "weight"))
    case_reports.check_weights_close(report, expected, case, _TOLERANCE)
    slots = [key for key in expected[case] if key.startswith("slot/")]
    assert bool(slots) == (case != "chief_reads")
    as_weights = [
        {case: {"weight/" + key: each[case][key] for key in slots}} for each in (report, expected)
    ]
    if slots:
        case_reports.check_weights_close(*as_weights, case, _TOLERANCE)
