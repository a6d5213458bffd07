# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""TFDEAR_TIMELINE=FILE: each rank writes what its engine recorded when the job ends."""

from __future__ import annotations

import contextlib
import logging
import socket
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from tfdear import errors
from tfdear.job import options
from tfdear.measure import clock, timeline

if TYPE_CHECKING:
    from tfdear.job.job import Job


class TimelineRecorder:
    """Writes one rank's timeline when its strategy is closed or its script ends, also by a failure.

    All ranks must create it together, once collectives work: they measure their clocks. `path` is
    the same for all; each adds its number to the name. `gather` gives a list of integers to all
    ranks and returns those of all.
    """

    def __init__(self, job: Job, path: str, gather: Callable[[list[int]], list[list[int]]]):
        self._job = job
        self._path = timeline.path_of_rank(path, job.rank)
        # Now, so that a wrong path does not cost a long training.
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._path.parent):
                pass
        except OSError as error:
            raise ValueError(
                f"{options.TIMELINE_VARIABLE}={path} cannot be written: {error}. Name a file in a "
                "directory that this process may write to."
            ) from error
        identities = job.exchange(clock.identity())
        measured = clock.measure(job.rank, gather, now_micros)
        shared = identities[job.rank] == identities[0]
        self._offset = clock.ClockOffset(0.0, 0.0, "shared") if shared else measured
        # Before the monitor is closed, because it is added later.
        job.ending.add(self._write)

    def _write(self) -> None:
        # The timeline of a job that failed ends at the failure.
        with contextlib.suppress(errors.TfdearError):
            self._job.engine.synchronize(self._job.options.timeout)
        reader = self._job.event_reader()
        try:
            rows = reader.read_rows()
            trace = timeline.make(
                rows,
                rank=self._job.rank,
                host=socket.gethostname(),
                offset=self._offset,
                lost_events=reader.lost,
            )
            timeline.write(trace, self._path)
        except Exception:  # The script has ended: nothing is left to catch it.
            logging.getLogger("absl").error("tfdear: the timeline %s is lost", self._path)
            traceback.print_exc()


def now_micros() -> int:
    """The clock of the event record: C++'s steady clock and this one are both CLOCK_MONOTONIC."""
    return time.monotonic_ns() // 1000
