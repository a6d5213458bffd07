# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How benchmarks tell what they found."""

from tfdear.benchmarks import report


def test_stolen_time_is_a_share_of_all_time_since(monkeypatch, tmp_path):
    # Nobody can ask a host to take the cores away; guests are counted in the user's time.
    times = tmp_path / "stat"
    monkeypatch.setattr(report, "_CPU_TIMES", times)
    times.write_text("cpu  100 0 50 500 0 0 0 7 40 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    stolen = report.StolenTime()
    times.write_text("cpu  104 0 51 502 0 0 0 8 44 0\ncpu0 2 2 2 2 2 2 2 2 2 2\n")
    assert stolen.share() == 1 / 8
