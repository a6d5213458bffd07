# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Says which ranks still run, long after the others have ended well: one of them may hang.

It ends none of them: what one rank does alone, such as an evaluation, may take long.
"""

from __future__ import annotations

from collections.abc import Sequence

from tfdear.base.patience import FIRST_SECONDS
from tfdear.launch.rank import Rank, names


class Reminder:
    """What to say when, while a job has not failed: as `Patience` since the last end of a rank."""

    def __init__(self) -> None:
        self._seconds = FIRST_SECONDS
        self.at = float("inf")  # When to ask it for its text.

    def text(self, ranks: Sequence[Rank], now: float) -> str | None:
        """What to say now, if anything."""
        self.at = float("inf")
        ends = [rank.ended_at for rank in ranks if rank.ended_at is not None]
        running = [rank for rank in ranks if rank.ended_at is None]
        if not ends or not running or any(rank.has_failed for rank in ranks):
            return None
        seconds = now - max(ends)
        is_due = seconds >= self._seconds
        if is_due:
            self._seconds = 2 * seconds
        self.at = max(ends) + self._seconds
        if not is_due:
            return None
        verb = "runs" if len(running) == 1 else "run"
        return (
            f"{names(running)} still {verb}, {seconds:.0f} s after the last of the others has "
            "ended; that is right for what is done alone, such as an evaluation. To see where a "
            f"DearStrategy waits: kill -USR1 {' '.join(str(rank.pid) for rank in running)}. Ctrl-C "
            "ends the job."
        )
