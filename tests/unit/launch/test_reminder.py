# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""When the launcher says which ranks still run."""

import dataclasses

from tfdear.launch.reminder import Reminder


@dataclasses.dataclass
class Rank:
    """What the reminder looks at."""

    number: int
    pid: int
    ended_at: float | None = None
    has_failed: bool = False


def said_at(ranks, times):
    """The times at which it says something, each asked for as a launcher does."""
    reminder = Reminder()
    said = {}
    for now in times:
        text = reminder.text(ranks, float(now))
        if text is not None:
            said[now] = text
        assert reminder.at > now
    return said


def test_it_says_it_less_and_less_often():
    ranks = [Rank(0, 10), Rank(1, 11, ended_at=5.0), Rank(2, 12), Rank(3, 13, ended_at=100.0)]
    said = said_at(ranks, range(100, 1000))
    assert list(said) == [160, 220, 340, 580]
    assert said[160].startswith("ranks 0, 2 still run, 60 s after") and "10 12" in said[160]


def test_it_says_nothing_before_an_end_nor_of_a_job_that_failed_or_is_over():
    for ranks in (
        [Rank(0, 10), Rank(1, 11)],
        [Rank(0, 10), Rank(1, 11, ended_at=5.0, has_failed=True)],
        [Rank(0, 10, ended_at=4.0), Rank(1, 11, ended_at=5.0)],
    ):
        assert not said_at(ranks, range(100, 1000, 10))
