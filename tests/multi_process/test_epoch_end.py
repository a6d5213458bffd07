# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Nobody waits for tf.data's autotuner at the end of an epoch, nor at the end of the script."""

import contextlib
import json
import os
import pathlib
import time

import pytest
from ranks import Ranks

pytestmark = [
    pytest.mark.integration,
    pytest.mark.multi_process,
    pytest.mark.newest_only,
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="putting a thread first on its core (SCHED_FIFO) needs root"
    ),
]

JOB = str(pathlib.Path(__file__).parent / "jobs" / "epoch_end_job.py")
WORLDS = (None, 1, 2)  # None: TensorFlow's default strategy.


@pytest.fixture(scope="module")
def reports():
    """By world size, every rank's report with its exit code and the seconds that leaving took."""
    found = {}
    with contextlib.ExitStack() as stack:
        # They sleep most of the time, so they can do it together.
        jobs = {
            world: stack.enter_context(
                Ranks(
                    world or 1,
                    JOB,
                    arguments=() if world else ("--plain",),
                    launcher=world is not None,
                )
            )
            for world in WORLDS
        }
        ends: dict = {}
        deadline = time.monotonic() + 480
        while time.monotonic() < deadline and len(ends) < sum(world or 1 for world in WORLDS):
            for world, job in jobs.items():
                for rank, process in enumerate(job.processes):
                    if (world, rank) not in ends and process.poll() is not None:
                        ends[world, rank] = time.monotonic()
            time.sleep(0.02)
        for world, job in jobs.items():
            codes = job.wait(timeout=1)
            found[world] = []
            for rank, code in enumerate(codes):
                lines = [line for line in job.output(rank).splitlines() if line.startswith("{")]
                assert code == 0 and lines, (
                    f"world {world}, rank {rank}, {code}: {job.output(rank)}"
                )
                report = json.loads(lines[-1])
                found[world].append({**report, "leaving": ends[world, rank] - report["end"]})
    print(json.dumps({str(world): reports for world, reports in found.items()}, indent=1))
    return found


def test_tensorflow_waits(reports):
    # What makes the other tests mean something: twice what they allow, at least.
    (report,) = reports[None]
    for name, seconds in report["extra"].items():
        assert seconds >= 0.5, (name, report)


@pytest.mark.parametrize("world_size", [1, 2])
def test_nobody_waits_after_the_last_step(reports, world_size):
    for report in reports[world_size]:
        for name, seconds in report["extra"].items():
            # At most 0.05 on a machine that does nothing else; one test beside it takes its share.
            assert seconds <= 0.25, (name, report)


@pytest.mark.parametrize("world_size", [1, 2])
def test_there_is_an_autotuner_only_where_it_is_needed(reports, world_size):
    for report in reports[world_size]:
        for name, count in report["threads"].items():
            without = ("nothing to tune", "switched off by the script")
            assert (count == 0) == name.endswith(without), (name, report)


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_script_ends_while_autotuners_sleep(reports, world_size):
    for report in reports[world_size]:
        assert report["asleep"] >= 1, report
        # Less than 2 on a machine that does nothing else.
        assert report["leaving"] < 6, report
