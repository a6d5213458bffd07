# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a real job of two ranks measures about itself."""

from __future__ import annotations

import json
import pathlib
import platform
import re

import pytest
import tensorflow as tf
from ranks import Ranks
from trace_format import check_trace  # noqa: E402

from tfdear.measure import timeline
from tfdear.planning.trace import Trace

pytestmark = [pytest.mark.multi_process, pytest.mark.newest_only, pytest.mark.slow]

_JOB = pathlib.Path(__file__).parent / "jobs" / "measurement_job.py"
_STEPS = 30
_BUCKETS = 4


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("measurement")
    # Without delays, a loopback may be done before the next step begins.
    env = {
        "TFDEAR_TIMELINE": str(path / "timeline.json"),
        "TFDEAR_TRACE": str(path / "trace.json"),
        "TFDEAR_MAX_DELAY_MS": "10",
    }
    with Ranks(2, _JOB, env, (str(path),)) as ranks:
        codes = ranks.wait(timeout=200)
        outputs = [ranks.output(rank)[-4000:] for rank in range(2)]
    assert codes == [0, 0], outputs
    return path


@pytest.fixture(scope="module")
def reports(directory):
    return [json.loads((directory / f"report_{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def traces(directory):
    return [timeline.read(directory / f"timeline.rank{rank}.json") for rank in range(2)]


def collectives(trace):
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    return [event for event in spans if timeline.line_of(event) == timeline.COMMUNICATION]


def test_timelines_are_valid_and_complete(traces):
    for rank, trace in enumerate(traces):
        check_trace(trace)
        (about,) = trace["otherData"]["ranks"]
        assert about["rank"] == rank and about["lost events"] == 0
        assert about["clock"] == "shared" and about["clock error (us)"] == 0
        passes = [event for event in trace["traceEvents"] if event["name"] == "forward"]
        assert len(passes) == _STEPS
        names = {event["name"].split()[0] for event in trace["traceEvents"] if event["ph"] == "X"}
        assert {"backward", "reduce_scatter", "all_gather", "update", "wait"} <= names
    check_trace(timeline.merge(traces))


def test_rank_0_writes_a_trace_of_the_model(directory):
    recorded = Trace.load(directory / "trace.json")
    assert len(recorded.layers) == 8
    assert recorded.bytes == 4 * (3 * (256 * 256 + 256) + 256 * 2 + 2)
    assert recorded.forward > 0 and recorded.backward > 0


def test_ranks_are_in_the_same_collective_at_the_same_time(traces):
    by_key = [
        {(e["cat"], e["args"]["step"], e["args"]["bucket"]): e for e in collectives(trace)}
        for trace in traces
    ]
    assert by_key[0].keys() == by_key[1].keys()
    assert len(by_key[0]) >= 2 * _STEPS
    for key, one in by_key[0].items():
        other = by_key[1][key]
        # Nobody is through before everybody has begun.
        assert one["ts"] <= other["ts"] + other["dur"], key
        assert other["ts"] <= one["ts"] + one["dur"], key


def test_a_measured_clock_is_right_within_its_error(reports):
    # All ranks read one clock, so the true offset is none.
    assert reports[0]["clock offset"] == reports[0]["clock error"] == 0
    assert abs(reports[1]["clock offset"]) <= reports[1]["clock error"]
    assert reports[1]["clock error"] > 0


def test_only_transfers_have_short_slices(reports):
    # An update that competes with transfers leaves the line idle.
    release = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    granted = release >= (6, 12)
    for report in reports:
        # TensorFlow's threads have names of their own from 2.21 on: all others are asked for.
        slices = dict(report["slices"])
        transfers = set(slices.pop("tfdear_transfer"))
        others = {value for values in slices.values() for value in values}
        assert len(others) == 1, slices
        assert transfers == ({100_000} if granted else others)


def test_statistics_are_complete(reports):
    for report in reports:
        first, second = report["first"], report["second"]
        assert first["steps"] == 10 and second["steps"] == 20
        # Two steps are listed only when a later one was opened.
        assert len(first["per_step"]) == 8 and len(second["per_step"]) == 20
        assert [step["ticket"] for step in second["per_step"]] == list(
            range(first["per_step"][-1]["ticket"] + 1, first["per_step"][-1]["ticket"] + 21)
        )
        gradients = 4 * (3 * (256 * 256 + 256) + 256 * 2 + 2)
        assert sum(second["plan"]["bucket_bytes"]) >= gradients
        assert second["bytes"] == 20 * sum(second["plan"]["bucket_bytes"])
        assert sorted(sum(second["plan"]["buckets"], [])) == list(range(8))
        for step in second["per_step"]:
            parts = step["forward"] + step["backward"] + step["other"]
            assert 0 < parts <= step["time"] * (1 + 1e-9)
            assert step["exposed"] <= step["communication"] * (1 + 1e-9)
        assert second["busbw"]["reduce_scatter"] > 0
        bounds = second["bounds"]
        assert 0 < bounds["dear"] <= bounds["dear_barrier"]
        assert 0 < bounds["speedup"] <= 2 + 1e-9
        assert second["fraction_of_bound"] > 0
        assert second["lost_events"] == 0


def test_readers_take_nothing_from_each_other(reports):
    for report in reports:
        assert report["first"]["steps"] == report["steps in events"] == 10


def test_a_call_of_a_function_waits_for_no_updates(reports):
    # The function that is called waits for each variable where it uses it.
    assert [report["awaits outside the inner function"] for report in reports] == [0, 0]


def test_the_next_step_is_opened_before_the_last_all_gather(traces):
    for trace in traces:
        begin = {e["args"]["step"]: e["ts"] for e in trace["traceEvents"] if e["name"] == "forward"}
        last_gather = {}
        for event in collectives(trace):
            if event["cat"] == "all_gather":
                last_gather[event["args"]["step"]] = event["ts"] + event["dur"]
        early = [begin[step + 1] < last_gather[step] for step in last_gather if step + 1 in begin]
        # Not before the pauses between epochs, and not where a rank was slow.
        assert sum(early) >= len(early) // 2, early


def test_marks_are_in_tensorflows_profile(directory):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    (path,) = directory.glob("profile/**/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    marks = []
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if name.startswith("tfdear "):
                    stats = {plane.stat_metadata[s.metadata_id].name for s in event.stats}
                    assert "ticket" in stats
                    assert event.duration_ps >= 0
                    marks.append(name)
    assert marks.count("tfdear step") == 20
    assert marks.count("tfdear reduce_scatter") >= 20
    assert marks.count("tfdear all_gather") >= 20
    assert "tfdear update" in marks


def test_rank_0_writes_scalars(directory):
    paths = list(directory.glob("logs/**/events.out.*"))
    assert len(paths) == 1
    tags = {}
    for record in tf.data.TFRecordDataset([str(paths[0])]):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            tags.setdefault(value.tag, []).append(event.step)
    assert tags["overlap"] and tags["fraction_of_bound"] and tags["busbw/all_gather"]
    # 10 batches per epoch, a point every 4 and at the end of an epoch.
    assert tags["step_seconds/time"] == [4, 8, 10, 14, 18, 20]
