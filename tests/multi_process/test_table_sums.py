# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Sums of gradients of sharded tables, while they are accumulated, by several ranks."""

import pathlib

import pytest
import ranks

_JOB = pathlib.Path(__file__).parent / "jobs" / "table_sums_job.py"

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]


def test_reads_and_writes_of_sums():
    results = ranks.run_ranks(2, _JOB, timeout=200)
    assert [code for code, _ in results] == [0, 0], results
