# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How benchmarks tell what they found."""

import collections

import psutil

from tfdear.benchmarks import report

Times = collections.namedtuple("Times", "user system idle steal guest")


def test_stolen_time_is_a_share_of_all_time_since(monkeypatch):
    # Nobody can ask a host to take the cores away; guests are counted in the user's time.
    times = iter([Times(100, 50, 500, 7, 40), Times(104, 51, 502, 8, 44)])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(times))
    assert report.StolenTime().share() == 1 / 8
