# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What `DearStrategy.statistics()` returns: the record of steps, and what a job knows beside it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tfdear.base import names
from tfdear.engine import events as event_record
from tfdear.engine import plan as engine_plan
from tfdear.measure import steps as statistics
from tfdear.planning import bounds as bounds_module

if TYPE_CHECKING:
    from tfdear.job import job as job_module


class StrategyStatistics:
    """Reads the record from a place of its own and puts the job's facts beside it."""

    def __init__(self, job: job_module.Job):
        self._job = job
        self._steps = statistics.StepStatistics()
        self._reader = job.event_reader() if job.world_size > 1 else None

    def forget(self) -> None:
        """Forgets what happened since the last call of `take`, and steps that are not over."""
        self.take()
        self._steps.forget()

    def take(self) -> dict:
        """Sums up what happened since the last call; see `DearStrategy.statistics`."""
        job, reader = self._job, self._reader
        lost = 0 if reader is None else reader.lost
        rows = np.empty(0, event_record.EVENT_ROW) if reader is None else reader.read_rows()
        if reader is not None and reader.lost > lost:
            self._steps.forget()  # The steps before it do not end where what is left begins.
        summary = self._steps.add(rows)
        summary["algbw"], summary["busbw"] = statistics.bandwidths(
            summary, job.world_size, job.groups.level_sizes
        )
        summary["lost_events"] = 0 if reader is None else reader.lost
        lanes = () if reader is None else names.Lane
        summary["bytes_sent"] = sum(job.engine.counters(lane)["bytes_sent"] for lane in lanes)
        summary["transports"] = {
            lane.name.lower(): transport.name.lower()
            for lane, transport in job.groups.transports.items()
        }
        summary["connections"] = job.groups.connections
        summary["average"] = average = statistics.average(summary["per_step"])
        summary["plan"] = plan = self._plan()
        costs = job.costs  # None for a rank alone.
        summary["costs"] = None if costs is None else dataclasses.asdict(costs)
        summary["link_costs"] = {
            link: dataclasses.asdict(measured)
            for link, measured in job.links.costs_of_class.items()
        }
        summary["bounds"] = summary["fraction_of_bound"] = None
        if average is not None and plan is not None:
            bounds = bounds_module.make_bounds(average, plan["bucket_bytes"], costs)
            kinds = ("dear", "dear_barrier", "all_reduce_overlap", "sequential")
            summary["bounds"] = {
                **{kind: getattr(bounds, kind) for kind in kinds},
                "speedup": bounds.speedup(job.world_size),
                "communication_from": "measured" if costs is None else "costs",
            }
            bound = bounds.of(job.options.planned_schedule)
            summary["fraction_of_bound"] = bound / average["typical_time"]
        return summary

    def _plan(self) -> dict | None:
        layout = self._steps.layout
        if layout is None:
            return None
        plan = engine_plan.decode(self._job.engine.plan(layout)[0])
        tuner = self._job.tuner  # Of rank 0, which makes the plans.
        prediction = None if tuner is None else tuner.prediction(layout)
        return {
            "bucket_bytes": self._job.engine.bucket_bytes(layout),
            "buckets": [list(bucket) for bucket in plan.buckets],
            "steps": [dataclasses.asdict(step) for step in plan.steps],
            "wait_for_all": plan.wait_for_all,
            "predicted_time": None if prediction is None else prediction.time,
            "lower_bound": None if prediction is None else prediction.lower_bound,
        }
