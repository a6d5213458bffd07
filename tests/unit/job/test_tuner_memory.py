# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the tuner keeps of a long training."""

import numpy as np

import tfdear
from tfdear.job import tuner


def test_steps_are_counted_but_not_kept():
    layout = tuner._Layout(0, ["a"], [], [1], tfdear.fusion.FixedSize())
    times = np.cumsum(np.full(20_000, 0.5)).tolist()
    for begin in range(0, len(times), 7):
        layout.opened.extend(times[begin : begin + 7])
        layout.forget_old_steps(100)
        assert len(layout.opened) <= 200 + 7
    assert layout.steps == len(times)
    # The latest are those that are left, by their number.
    first = layout.steps - 50
    assert layout.opened[first - layout.forgotten :] == times[first:]
