# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Timelines: format, one clock, merging, drawing and the command."""

import json
import threading

import numpy as np
import pytest
from event_rows import dear_step, dear_steps, record, row
from trace_format import check_trace

from tfdear.commands import main as cli
from tfdear.measure import clock, timeline
from tfdear.measure import drawing as timeline_drawing

SHARED = clock.ClockOffset(0.0, 0.0, "shared")


def make(rank=0, offset=SHARED, rows=None):
    rows = dear_steps(6) if rows is None else rows
    return timeline.make(rows, rank=rank, host="node", offset=offset)


def spans(trace, line):
    return [
        event
        for event in trace["traceEvents"]
        if event["ph"] == "X" and timeline.line_of(event) == line
    ]


def test_a_timeline_is_a_valid_trace():
    check_trace(make())
    check_trace(make(rows=record()))


def test_a_broken_trace_does_not_pass_the_check():
    overlapping = make()
    first, second = spans(overlapping, timeline.COMMUNICATION)[:2]
    second["ts"] = first["ts"] + first["dur"] / 2
    with pytest.raises(AssertionError):
        check_trace(overlapping)
    unnamed = make()
    unnamed["traceEvents"] = [e for e in unnamed["traceEvents"] if e["name"] != "thread_name"]
    with pytest.raises(AssertionError):
        check_trace(unnamed)


def test_lines_show_passes_buckets_and_waits():
    trace = make()
    passes = spans(trace, timeline.PASSES)
    assert [event["name"] for event in passes] == ["forward", "backward"] * 6
    assert [(event["ts"], event["dur"]) for event in passes[:3]] == [
        (5000, 30000),
        (35000, 50000),
        (105000, 30000),
    ]
    first = spans(trace, timeline.COMMUNICATION)[0]
    assert first["name"] == "reduce_scatter 0"
    assert first["args"] == {"step": 0, "bucket": 0, "bytes": 1000, "computation_us": 12000}
    waits = spans(trace, timeline.READS)
    assert len(waits) == 6 and all(event["args"]["reads"] == 4 for event in waits)
    # Reads that end at different times are one wait, from the first begin to the last end.
    assert (waits[0]["ts"], waits[0]["dur"]) == (106000, 16000)
    # All updates of a bucket begin together, so they need a thread each.
    updates = spans(trace, timeline.UPDATES)
    assert len({event["tid"] for event in updates}) == 2
    ready = [event for event in trace["traceEvents"] if event["ph"] == "i"]
    assert sum(timeline.line_of(event) == timeline.GRADIENTS for event in ready) == 24


def step_with_tables():
    """A step in whose forward pass ops wait for vectors; rows are split in the backward pass."""
    return record(
        *dear_step(3, 100),
        row("embedding_ids", 3, 0, 80, 101, 103),
        row("embedding_vectors", 3, 0, 640, 103, 109),
        row("wait", 0, 0, 5, 102, 110, 3),
        row("embedding_split", 3, 0, 20, 164, 167),
        row("embedding_prior", 3, 0, 320, 167, 171),
        row("embedding_vectors", 3, 1, 320, 169, 175),
        row("embedding_delayed", 3, 0, 160, 175, 178),
    )


def test_lines_show_what_ops_waited_for_and_what_tables_did():
    trace = make(rows=step_with_tables())
    check_trace(trace)
    (wait,) = spans(trace, timeline.WAITS)
    assert (wait["name"], wait["ts"], wait["dur"]) == ("wait", 102000, 8000)
    assert wait["args"] == {"ops": 5, "computation_us": 3000}
    of_tables = spans(trace, timeline.TABLES)
    assert [event["name"] for event in of_tables] == [
        "embedding_ids",
        "embedding_vectors",
        "embedding_split",
        "embedding_prior",
        "embedding_vectors",
        "embedding_delayed",
    ]
    split, prior = of_tables[2:4]
    assert (split["ts"], split["dur"]) == (164000, 3000)
    assert split["args"] == {"step": 3, "ids": 20, "of_next_step": 0}
    assert split["tid"] == prior["tid"]
    assert prior["args"] == {"step": 3, "bytes": 320, "of_next_step": 0}
    # Exchanges that run at once need a thread each.
    assert of_tables[4]["tid"] == prior["tid"] + 1


def test_the_clock_of_rank_0_is_everybodys():
    shifted = make(rank=3, offset=clock.ClockOffset(-2500.25, 40.0, "measured"))
    first = spans(shifted, timeline.PASSES)[0]
    assert (first["pid"], first["ts"], first["dur"]) == (3, 2499.75, 30000)
    assert shifted["otherData"]["ranks"][0]["clock error (us)"] == 40.0


def test_files_come_back_and_merge(tmp_path):
    paths = []
    for rank in (2, 0, 11):
        path = timeline.path_of_rank(tmp_path / "new" / "trace.json", rank)
        timeline.write(make(rank), path)
        paths.append(path)
    assert [path.name for path in paths] == [
        "trace.rank2.json",
        "trace.rank0.json",
        "trace.rank11.json",
    ]
    assert sorted(paths) == sorted((tmp_path / "new").iterdir())
    traces = [timeline.read(path) for path in paths]
    assert traces[0] == make(2)
    merged = timeline.merge(traces)
    check_trace(merged)
    assert [entry["rank"] for entry in merged["otherData"]["ranks"]] == [0, 2, 11]
    assert len(merged["traceEvents"]) == 3 * len(traces[0]["traceEvents"])
    with pytest.raises(ValueError, match=r"received ranks \[0, 2, 2, 11\]"):
        timeline.merge([merged, traces[0]])


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"traceEvents": [], "otherData": {}}', '{"traceEvents": [{}], "o": 1}'],
)
def test_other_files_are_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="other.json is no timeline of tfdear"):
        timeline.read(path)


class SimulatedRanks:
    """Ranks whose clocks and messages are simulated: nobody has a value before it was given.

    Args:
        ahead: What each rank's clock is ahead of the true time, in microseconds.
        seed: Of the lags of messages.
    """

    def __init__(self, ahead, seed):
        self.ahead = ahead
        self._random = np.random.RandomState(seed)
        self._barrier = threading.Barrier(len(ahead), action=self._deliver)
        self._readers = threading.Barrier(len(ahead))
        self._true_time = [0.0] * len(ahead)
        self._given = [None] * len(ahead)
        self._gathered = None

    def _deliver(self):
        last = max(self._true_time)
        self._gathered = [list(values) for values in self._given]
        # Never symmetric: the way to rank 0 is ten times as slow as the way from it.
        for rank in range(len(self._true_time)):
            lag = self._random.exponential(2000.0 if rank == 0 else 200.0)
            self._true_time[rank] = last + 30.0 + lag

    def measure(self, rank):
        def now():
            self._true_time[rank] += 1.0
            return round(self._true_time[rank] + self.ahead[rank])

        def gather(values):
            self._given[rank] = values
            self._barrier.wait(20)
            gathered = self._gathered
            # The values of a round may not be replaced before everybody has them.
            self._readers.wait(20)
            return gathered

        return clock.measure(rank, gather, now)

    def run(self):
        results = [None] * len(self.ahead)

        def work(rank):
            results[rank] = self.measure(rank)

        threads = [threading.Thread(target=work, args=(r,)) for r in range(len(self.ahead))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return results


@pytest.mark.parametrize("seed", range(5))
def test_the_offset_of_a_clock_is_within_its_error(seed):
    ahead = [0.0, 7_000_000.0, -123_456.0]
    offsets = SimulatedRanks(ahead, seed).run()
    assert offsets[0] == SHARED
    for rank in (1, 2):
        assert offsets[rank].source == "measured"
        assert abs(offsets[rank].microseconds + ahead[rank]) <= offsets[rank].error
        # The best of the rounds, not a typical one.
        assert offsets[rank].error < 500


def test_clocks_that_do_not_fit_are_reported():
    with pytest.raises(ValueError, match="do not fit together"):
        clock.offset_between([(0, 10, 5, 15), (100, 110, 905, 915)])


def test_processes_of_one_machine_share_a_clock():
    assert clock.identity() == clock.identity()


def test_a_picture_shows_ranks_phases_and_buckets(tmp_path):
    import matplotlib

    merged = timeline.merge([make(0), make(1)])
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        timeline_drawing.draw(merged, tmp_path / "timeline.svg", num_steps=2)
    text = (tmp_path / "timeline.svg").read_text()
    for label in ("rank 0  communication", "rank 1  passes", "reduce-scatter", "all-gather"):
        assert f">{label}<" in text, label
    assert "time in ms" in text and "Steps 2 to 3" in text and ">1<" in text
    timeline_drawing.draw(merged, tmp_path / "timeline.png", first_step=4)
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_the_legend_explains_bars_numbers_and_ticks(tmp_path):
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):  # Text stays text.
        timeline_drawing.draw(make(), tmp_path / "timeline.svg")
    text = (tmp_path / "timeline.svg").read_text()
    for entry in ("forward", "all-gather", "update", "number of the bucket", "a gradient is ready"):
        assert f">{entry}</text>" in text, entry


def test_a_picture_shows_waits_and_tables(tmp_path):
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        timeline_drawing.draw(make(rows=step_with_tables()), tmp_path / "timeline.svg")
    text = (tmp_path / "timeline.svg").read_text()
    for label in ("rank 0  waits", "rank 0  tables"):
        assert f">{label}<" in text, label
    for entry in ("ops wait", "ids", "vectors", "split", "prior", "delayed"):
        assert f">{entry}</text>" in text, entry
    # In colours of their own, not in that of what nobody knows.
    assert "#999999" not in text


def test_steps_that_are_not_there_are_refused(tmp_path):
    with pytest.raises(ValueError, match="expected one of 0 to 5"):
        timeline_drawing.draw(make(), tmp_path / "timeline.png", first_step=9)
    with pytest.raises(ValueError, match="at least one step"):
        timeline_drawing.draw(make(), tmp_path / "timeline.png", num_steps=0)
    without = make(rows=record(row("collective", 0, 0, 0, 1, 2)))
    with pytest.raises(ValueError, match="no steps"):
        timeline_drawing.draw(without, tmp_path / "timeline.png")


def test_the_command_merges_draws_and_refuses(tmp_path, capsys):
    paths = [str(timeline.path_of_rank(tmp_path / "timeline.json", rank)) for rank in (0, 1)]
    for rank, path in enumerate(paths):
        timeline.write(make(rank), path)
    assert cli.main(["timeline", *paths, "-o", str(tmp_path / "all.json")]) == 0
    check_trace(json.loads((tmp_path / "all.json").read_text()))
    assert cli.main(["timeline", *paths, "-o", str(tmp_path / "all.png"), "--steps", "1"]) == 0
    assert (tmp_path / "all.png").exists()
    assert cli.main(["timeline", paths[0], paths[0], "-o", str(tmp_path / "no.json")]) == 2
    assert "name each file once" in capsys.readouterr().err
    assert cli.main(["timeline", str(tmp_path / "none.json"), "-o", "no.json"]) == 2
    error = capsys.readouterr().err
    assert error == f"tfdear timeline: {tmp_path / 'none.json'}: no such file or directory.\n"
    no_folder = tmp_path / "none" / "all.png"
    assert cli.main(["timeline", *paths, "-o", str(no_folder)]) == 2
    assert str(no_folder) in capsys.readouterr().err
