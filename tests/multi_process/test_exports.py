# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""All ranks may export to one folder, and read it as soon as their call returns."""

import pathlib

import pytest
from ranks import run_ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.timeout(200)]

_JOB = pathlib.Path(__file__).parent / "jobs" / "export_job.py"


@pytest.mark.parametrize("exports", [5, pytest.param(25, marks=pytest.mark.long)])
def test_an_export_is_there_and_whole_at_any_time(tmp_path, exports):
    arguments = (str(tmp_path), str(exports))
    for code, output in run_ranks(3, _JOB, {}, timeout=180, arguments=arguments):
        assert code == 0, output[-4000:]
        assert "read what was exported" in output
    assert [path.name for path in tmp_path.iterdir()] == ["exported"]
