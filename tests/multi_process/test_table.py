# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A large table, whose gradient is ready first and needed last, blocks nothing on a real link."""

import collections
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tfdear.benchmarks import lab as netlab

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
_JOB = _REPOSITORY / "tests" / "multi_process" / "jobs" / "table_job.py"
_TABLE_BYTES = 94_000_000


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """What two ranks report whose link carries 1 Gbit/s."""
    directory = tmp_path_factory.mktemp("table")
    with netlab.temporary(2, rate="1gbit") as lab:
        workers = [f"{node.address}:7200" for node in lab.nodes]
        processes = []
        try:
            for rank, node in enumerate(lab.nodes):
                task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
                environment = {
                    **os.environ,
                    "PYTHONPATH": str(_REPOSITORY),
                    "TF_CONFIG": json.dumps(task),
                    "TF_NUM_INTRAOP_THREADS": "1",
                    "TF_NUM_INTEROP_THREADS": "2",
                    "TF_CPP_MIN_LOG_LEVEL": "1",
                    "TFDEAR_NODE_RANK": str(rank),
                }
                command = [sys.executable, str(_JOB), str(directory / "report.json")]
                with open(directory / f"log.{rank}", "wb") as log:
                    processes.append(
                        subprocess.Popen(
                            node.command(command),
                            env=environment,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                        )
                    )
            codes = [process.wait(240) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(10)
        logs = "\n".join((directory / f"log.{rank}").read_text() for rank in range(2))
        assert codes == [0, 0], logs[-6000:]
    return [json.loads((directory / f"report.{rank}").read_text()) for rank in range(2)]


def by_step(report):
    """The collectives of the steps that were carried whole, by ticket, in order."""
    steps = collections.defaultdict(list)
    for event in report["events"]:
        steps[event["ticket"]].append(event)
    whole = [
        events
        for events in steps.values()
        if sum(event["kind"] == "all_gather" for event in events)
        == sum(step["phase"] == "all_gather" for step in report["plan"]["steps"])
        and len(events) == len(report["plan"]["steps"])
    ]
    return [sorted(events, key=lambda event: event["begin"]) for events in whole]


def late_gathers(events, urgency):
    """By gather: the steps of less urgent buckets that went before it though it could begin."""
    passed = {}
    for gather in events:
        bucket = gather["subject"]
        if gather["kind"] != "all_gather" or bucket in passed:
            continue
        reduced = max(
            event["end"]
            for event in events
            if (event["kind"], event["subject"]) == ("reduce_scatter", bucket)
        )
        passed[bucket] = [
            (event["kind"], event["subject"])
            for event in events
            if reduced <= event["begin"] < gather["begin"]
            and urgency[event["subject"]] > urgency[bucket]
        ]
    return passed


@pytest.mark.multi_process
@pytest.mark.newest_only
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root")
def test_an_urgent_gather_waits_for_one_chunk_of_a_table_at_most(reports):
    plan = reports[0]["plan"]
    # The plan from measured times was in use before the observed steps, and stayed.
    assert plan["predicted_time"] is not None
    assert plan["predicted_time"] <= 1.01 * plan["lower_bound"]
    for report in reports:
        for field in ("buckets", "steps"):
            assert report["plan"][field] == plan[field] == report["plan afterwards"][field]
    # There is something to choose: what is urgent comes while the table is on its way.
    assert len(plan["buckets"]) > 2, plan
    assert max(plan["bucket_bytes"]) >= _TABLE_BYTES
    # The forward pass needs the tensors in their order.
    urgency = [min(tensors) for tensors in plan["buckets"]]
    print(plan["bucket_bytes"], plan["predicted_time"], plan["lower_bound"])
    print([(s["phase"], s["bucket"], s["chunk"], s["chunks"]) for s in plan["steps"]])
    for rank, report in enumerate(reports):
        steps = by_step(report)
        assert len(steps) >= 3
        for events in steps:
            passed = late_gathers(events, urgency)
            assert len(passed) == len(plan["buckets"])
            print(rank, {bucket: len(others) for bucket, others in sorted(passed.items())})
            assert max(map(len, passed.values())) <= 1, passed
