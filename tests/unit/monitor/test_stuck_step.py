# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ops that wait for each other are told from those that wait for something that goes on."""

from tfdear.monitor import stuck_step


def test_seconds_count_from_what_happened_last():
    seen = {"state": 0, "ops": []}
    stuck = stuck_step.StuckStep(lambda: (seen["state"], seen["ops"]))
    assert stuck.look(10.0, []) == (0.0, [])
    # A script that does something else has no op that waits.
    assert stuck.look(50.0, []) == (0.0, [])
    seen.update(state=1, ops=["words/vectors"])
    assert stuck.look(60.0, []) == (0.0, ["words/vectors"])
    assert stuck.look(75.0, []) == (15.0, ["words/vectors"])
    # A collective has a deadline of its own.
    assert stuck.look(80.0, ["all_reduce"])[0] == 0.0
    assert stuck.look(90.0, [])[0] == 10.0
    seen.update(state=2)
    assert stuck.look(95.0, [])[0] == 0.0
    assert stuck.look(98.0, [])[0] == 3.0
