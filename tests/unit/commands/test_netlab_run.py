# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How `tfdear netlab run` waits for its ranks."""

import subprocess
import sys

import pytest

from tfdear.commands import netlab


@pytest.mark.timeout(60)
def test_a_later_rank_that_fails_is_noticed_while_an_earlier_one_runs(monkeypatch):
    monkeypatch.setattr(netlab, "_GRACE_SECONDS", 0.1)
    scripts = ("import time; time.sleep(300)", "raise SystemExit(3)")
    ranks = [subprocess.Popen([sys.executable, "-c", script]) for script in scripts]
    try:
        assert netlab._wait(ranks) == 3
        assert ranks[0].poll() is None
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(10)
