# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Updates that the engine runs tile by tile leave the bits that TensorFlow's kernels leave."""

import json
import pathlib

import pytest
from ranks import Ranks

pytestmark = [pytest.mark.multi_process, pytest.mark.slow]

_JOB = pathlib.Path(__file__).parent / "jobs" / "elementwise_update_job.py"
# Of this an operation is rounded in no prescribed way.
_NOT_TRANSLATED = {"ftrl"}


def test_updates_of_all_optimizers_are_translated_and_change_no_bit():
    with Ranks(2, _JOB) as ranks:
        codes = ranks.wait(timeout=300)
        outputs = [ranks.output(rank) for rank in range(2)]
    assert codes == [0, 0], outputs
    reports = [
        [json.loads(line) for line in output.splitlines() if line.startswith('{"name"')]
        for output in outputs
    ]
    assert reports[0] == reports[1]
    # Only newer versions of Keras have ScheduleFreeAdamW.
    assert len(reports[0]) >= 16
    for report in reports[0]:
        assert report["equal"], report
        expected = 0 if report["name"] in _NOT_TRANSLATED else report["of"]
        assert report["translated"] == expected and report["of"] >= 6, report
        assert report["inexactly"] == report["of"], report
