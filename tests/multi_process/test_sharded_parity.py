# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Weights and slots of sharded tables are those of plain Keras with the dense gradient."""

import functools

import case_reports
import numpy as np
import pytest
import sharded_parity_job as job

pytestmark = [
    pytest.mark.multi_process,
    pytest.mark.newest_only,
    pytest.mark.slow,
    pytest.mark.timeout(2000),  # Two jobs of 900 at most.
]

_TOLERANCE = 1e-6  # Of the largest element.
# Adadelta has squares of updates, each computed from those before, and schedule-free AdamW
# recovers an average from the weights by a division in every step: products of all roundings.
_TIMES_ROUNDING = dict.fromkeys(
    ("adadelta", "adadelta_decay", "schedule_free", "schedule_free_decay"), 2
)
# Those that treat rows without a gradient, and scalars, in ways of their own.
_DIFFERENT = (
    "nesterov",
    "amsgrad",
    "adamw",
    "nadam_decay",
    "rmsprop_centered",
    "ftrl_shrinkage",
    "lion_decay",
    "average_overwrite",
    "accumulated_norm",
    "accumulated_global_norm",
    "accumulated_value",
    "accumulated_average",
    "tfdear_lamb",
)
_OTHERS = tuple(name for name in job.OPTIMIZERS if name not in _DIFFERENT)
_OF_PLAIN = ("nesterov", "amsgrad", "nadam_decay", "adagrad", "rmsprop_centered", "ftrl", "lion")
# Jobs: a number of ranks, and the optimizers that they train with.
CASES = ((2, _DIFFERENT),)
# What `make test-long` adds; a step takes the longer the more ranks share a core.
MORE = (
    *((size, names) for size in (1, 3) for names in (_DIFFERENT, _OTHERS)),
    (2, _OTHERS),
    (4, _DIFFERENT),
)
# Those of a job in which each of them trains 24 tables.
_GROUPS = tuple(
    tuple(job.OPTIMIZERS)[first : first + 4] for first in range(0, len(job.OPTIMIZERS), 4)
)
_FEW_OF_PLAIN = ("nesterov", "amsgrad", "rmsprop_centered", "ftrl")
_MORE_OF_PLAIN = tuple(name for name in _OF_PLAIN if name not in _FEW_OF_PLAIN)


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Trains a group of optimizers in one job, once: on some ranks or, as a reference, on none."""

    @functools.cache
    def train_once(world_size, names, tables):
        return case_reports.run_job(
            "sharded_parity_job.py",
            world_size,
            tmp_path_factory.mktemp("tables"),
            cases=",".join(f"{name}:{tables}" for name in names),
            timeout=900,
        )

    return train_once


def check(train, world_size, names, tables, name):
    reports, (expected,) = train(world_size, names, tables), train(None, names, tables)
    case = f"{name}:{tables}"
    case_reports.check_ranks_equal(reports, case)
    case_reports.check_close(reports[0], expected, case, 1e-4, ignore=("slot", "weight", "summed"))
    arrays = [key for key in expected[case] if key.startswith(("weight/", "slot/"))]
    assert len(arrays) >= 2 + len(job.TABLES[tables])
    tolerance = _TOLERANCE * _TIMES_ROUNDING.get(name, 1)
    for key in arrays:
        value, wanted = reports[0][case][key], expected[case][key]
        assert value.shape == wanted.shape, f"{case}: {key}"
        worst = np.max(np.abs(value.astype(np.float64) - wanted), initial=0)
        largest = np.max(np.abs(wanted), initial=0)
        assert worst <= tolerance * largest, f"{case}: {key}: {worst:g} of {largest:g}"


@pytest.mark.parametrize(
    ("world_size", "name", "names"),
    [
        pytest.param(size, name, names, marks=marks, id=f"{size}-{name}")
        for cases, marks in ((CASES, ()), (MORE, pytest.mark.long))
        for size, names in cases
        for name in names
    ],
)
def test_parity(train, world_size, name, names):
    check(train, world_size, names, "few", name)


@pytest.mark.parametrize(
    ("world_size", "tables", "name", "names"),
    [
        pytest.param(size, tables, name, names, marks=marks, id=f"{size}-{tables}-{name}")
        for size, tables, names, marks in (
            (2, "plain", _FEW_OF_PLAIN, ()),
            (2, "by_rows", _FEW_OF_PLAIN, ()),
            (1, "plain", _OF_PLAIN, pytest.mark.long),
            (2, "plain", _MORE_OF_PLAIN, pytest.mark.long),
            (2, "by_rows", _MORE_OF_PLAIN, pytest.mark.long),
        )
        for name in names
    ],
)
def test_parity_of_plain_embeddings(train, world_size, tables, name, names):
    """A word that occurs several times has several rows in their gradients."""
    check(train, world_size, names, tables, name)


@pytest.mark.long
@pytest.mark.parametrize(
    ("world_size", "name", "names"),
    [
        pytest.param(size, name, names, id=f"{size}-{name}")
        for names in _GROUPS
        for size in (1, 2, 3, 4)
        for name in names
    ],
)
def test_parity_of_all_widths_partitions_and_exchanges(train, world_size, name, names):
    check(train, world_size, names, "all", name)
