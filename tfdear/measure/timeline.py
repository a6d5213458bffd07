# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Timelines in the trace-event format that Perfetto and chrome://tracing open. No TensorFlow.

[Note: Lines of a timeline]
A rank is a process of the trace, what it does at once are its threads: the passes of its steps, the
periods in which ops waited for the engine, the gradients as they become ready, the collectives of
gradients (one at a time; in two levels, one within and one between nodes), what sharded tables
exchange and the splits of their ids, other collectives, updates, what caches of examples do, and
the time in which reads waited for updates, with a mark where each could go on. Events on one thread
must nest, so updates that run at once are spread over several threads. Reads are too many for that:
TensorFlow starts all of a step's at once, and one span stands for those that wait.
"""

import json
import os
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np

from tfdear.base import names
from tfdear.measure import clock
from tfdear.measure import steps as statistics

# Names of lines, in the order in which they are shown.
PASSES = "passes"
WAITS = "waits"
GRADIENTS = "gradients ready"
COMMUNICATION = "communication"
WITHIN_NODES = "communication within nodes"
BETWEEN_NODES = "communication between nodes"
TABLES = "tables"
OTHER_COLLECTIVES = "other collectives"
UPDATES = "updates"
DATA = "data"
READS = "waiting reads"
LINES = (
    PASSES,
    WAITS,
    GRADIENTS,
    COMMUNICATION,
    WITHIN_NODES,
    BETWEEN_NODES,
    TABLES,
    OTHER_COLLECTIVES,
    UPDATES,
    DATA,
    READS,
)
_LINE_OF_GROUP = {
    names.Group.WORLD: COMMUNICATION,
    names.Group.INTRA: WITHIN_NODES,
    names.Group.INTER: BETWEEN_NODES,
}
_LINE_OF_PHASE = {kind.name: _LINE_OF_GROUP[kind.group] for kind in names.STEP_KINDS}
# What `detail` says of events of sharded tables.
_DETAIL_OF_TABLES = {
    **dict.fromkeys(names.TABLE_EXCHANGES, "bytes"),
    names.TABLE_SPLIT: "ids",
}
# The same of what caches of examples do.
_DETAIL_OF_DATA = {
    **dict.fromkeys(names.DATA_EVENTS, "examples"),
    **dict.fromkeys(("data_fetch", "data_serve"), "bytes"),
}
# Threads per line: what happens at once is spread over them.
_THREADS_PER_LINE = 1000
_LATEST_MICROSECONDS = 1e17  # Three thousand years; floats tell microseconds apart that far.
_KINDS = names.EVENT_KINDS
_PASS_BOUNDS = {
    "forward": ("begin", "first_gradient"),
    "backward": ("first_gradient", "last_gradient"),
}


def path_of_rank(path: str | os.PathLike, rank: int) -> pathlib.Path:
    """Where a rank writes: `timeline.rank0.json` when all were told `timeline.json`."""
    whole = pathlib.Path(path)
    return whole.with_name(f"{whole.stem}.rank{rank}{whole.suffix or '.json'}")


def make(
    rows: np.ndarray, *, rank: int, host: str, offset: clock.ClockOffset, lost_events: int = 0
) -> dict:
    """A timeline of one rank from the rows of its event record (`EVENT_ROW`).

    A trace in the JSON object format, in which the rank is the process number and times are in
    microseconds of rank 0's steady clock. `lost_events` are those before the oldest row.

    Reference: Google, "Trace Event Format", https://github.com/google/trace-viewer.
    """
    writer = _Writer(rank, offset.microseconds)
    for window in statistics.step_windows(rows):
        for name, (begin, end) in _PASS_BOUNDS.items():
            writer.span(PASSES, name, window[begin], window[end], step=window["ticket"])
    # In the order of their begins, so that few threads hold what happens at once.
    rows = rows[np.argsort(rows["begin"], kind="stable")]
    _add_waiting_reads(writer, rows[rows["kind"] == _KINDS.index("await")])
    for row in rows:
        _add(writer, _KINDS[row["kind"]], row)
    return {
        "traceEvents": [*writer.names(host), *writer.events],
        "displayTimeUnit": "ms",
        "otherData": {
            "ranks": [
                {
                    "rank": rank,
                    "host": host,
                    "clock offset (us)": offset.microseconds,
                    "clock error (us)": offset.error,
                    "clock": offset.source,
                    "lost events": lost_events,
                }
            ]
        },
    }


def _add(writer: "_Writer", kind: str, row: np.void) -> None:
    begin, end, step = row["begin"], row["end"], row["ticket"]
    if kind in _LINE_OF_PHASE:
        writer.span(
            _LINE_OF_PHASE[kind],
            f"{kind} {row['subject']}",
            begin,
            end,
            category=kind,
            step=step,
            bucket=row["subject"],
            bytes=row["detail"],
            computation_us=row["computation"],
        )
    elif kind in _DETAIL_OF_TABLES:
        numbers = {_DETAIL_OF_TABLES[kind]: row["detail"], "of_next_step": row["subject"]}
        writer.span(TABLES, kind, begin, end, step=step, **numbers)
    elif kind in _DETAIL_OF_DATA:
        writer.span(DATA, kind, begin, end, **{_DETAIL_OF_DATA[kind]: row["detail"]})
    elif kind == "wait":
        computation = row["computation"]
        writer.span(WAITS, kind, begin, end, ops=row["detail"], computation_us=computation)
    elif kind == "contribute":
        name = f"gradient {row['subject']}"
        writer.instant(GRADIENTS, name, end, step=step, tensor=row["subject"], bucket=row["detail"])
    elif kind == "collective":
        writer.span(OTHER_COLLECTIVES, kind, begin, end, number=step, lane=row["subject"])
    elif kind in ("update", "row_update"):
        name = f"update {row['subject']}"
        variable = row["subject"]
        writer.span(UPDATES, name, begin, end, category="update", step=step, variable=variable)


def _add_waiting_reads(writer: "_Writer", reads: np.ndarray) -> None:
    until = np.maximum.accumulate(reads["end"])
    first_of_span = np.flatnonzero(np.append(True, reads["begin"][1:] > until[:-1]))
    for span in np.split(reads, first_of_span[1:]) if len(reads) else ():
        writer.span(READS, "reads wait", span["begin"][0], span["end"].max(), reads=len(span))
        for read in span:
            variable = read["subject"]
            waited = read["end"] - read["begin"]
            writer.instant(READS, f"read {variable}", read["end"], variable=variable, us=waited)


class _Writer:
    """Collects trace events of one rank and finds threads for them."""

    def __init__(self, rank: int, offset: float):
        self.events: list[dict] = []
        self._rank = rank
        self._offset = offset
        # By line: until when each of its threads is busy.
        self._busy_until: dict[str, list[int]] = {}

    def span(self, line: str, name: str, begin, end, category: str = "", **arguments) -> None:
        thread = self._thread(line, int(begin), int(end))
        event = self._add("X", line, thread, name, begin, arguments)
        event["dur"] = int(end - begin)
        event["cat"] = category or name

    def instant(self, line: str, name: str, at, **arguments) -> None:
        self._busy_until.setdefault(line, [0])
        event = self._add("i", line, 0, name, at, arguments)
        event["s"] = "t"
        event["cat"] = line

    def _add(self, phase: str, line: str, thread: int, name: str, at, arguments: dict) -> dict:
        number = _THREADS_PER_LINE * (LINES.index(line) + 1) + thread
        timestamp = round(int(at) + self._offset, 3)
        event = {"ph": phase, "name": name, "pid": self._rank, "tid": number, "ts": timestamp}
        event["args"] = {key: int(value) for key, value in arguments.items()}
        self.events.append(event)
        return event

    def _thread(self, line: str, begin: int, end: int) -> int:
        busy = self._busy_until.setdefault(line, [])
        for thread, until in enumerate(busy):
            if until <= begin:
                busy[thread] = end
                return thread
        busy.append(end)
        return len(busy) - 1

    def names(self, host: str) -> Iterable[dict]:
        """Events that name the process and its threads and put them in order."""

        def metadata(kind: str, thread: int = 0, **arguments) -> dict:
            return {"ph": "M", "name": kind, "pid": self._rank, "tid": thread, "args": arguments}

        yield metadata("process_name", name=f"rank {self._rank} on {host}")
        yield metadata("process_sort_index", sort_index=self._rank)
        for line in LINES:
            first = _THREADS_PER_LINE * (LINES.index(line) + 1)
            for place in range(len(self._busy_until.get(line, []))):
                name = line if place == 0 else f"{line} {place + 1}"
                yield metadata("thread_name", first + place, name=name)
                yield metadata("thread_sort_index", first + place, sort_index=first + place)


def line_of(event: dict) -> str:
    """The line of a timeline's event, one of `LINES`."""
    return LINES[event["tid"] // _THREADS_PER_LINE - 1]


def write(trace: dict, path: str | os.PathLike) -> None:
    """Writes a trace, whole or not at all; its directory is made if it is missing."""
    target = pathlib.Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    part.write_text(json.dumps(trace, separators=(",", ":")))
    part.replace(target)


def read(path: str | os.PathLike) -> dict:
    """Reads a trace that a rank wrote, or several merged ones.

    Raises ValueError where it is no timeline of tfdear, OSError where it cannot be read.
    """
    try:
        trace = json.loads(pathlib.Path(path).read_text())
        ranks = [entry["rank"] for entry in trace["otherData"]["ranks"]]
        complete = all(map(_is_event, trace["traceEvents"]))
        complete = complete and all(type(rank) is int and rank >= 0 for rank in ranks)
        complete = complete and {event["pid"] for event in trace["traceEvents"]} <= set(ranks)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{path} is no timeline of tfdear: expected a file that TFDEAR_TIMELINE=FILE made a "
            f"rank write, or one that `tfdear timeline -o FILE.json` merged ({error!r})."
        ) from error
    if not ranks or not complete:
        raise ValueError(f"{path} is no complete timeline of tfdear: write it again.")
    return trace


def _is_event(event: dict) -> bool:
    """Whether it has what drawing and merging rely on."""
    texts = [event["ph"], event["name"]]
    numbers = [event["pid"], event["tid"]]
    if event["ph"] != "M":
        texts.append(event["cat"])
        line = event["tid"] // _THREADS_PER_LINE - 1
        if not 0 <= line < len(LINES) or not abs(event["ts"]) <= _LATEST_MICROSECONDS:
            return False
    if event["ph"] == "X":
        if not 0 <= event["dur"] <= _LATEST_MICROSECONDS:
            return False
        numbers += [event["args"][key] for key in ("step", "bucket") if key in event["args"]]
        if event["name"] in _PASS_BOUNDS:
            numbers.append(event["args"]["step"])
    whole = all(type(number) is int for number in numbers)
    return whole and all(isinstance(text, str) for text in texts)


def merge(traces: Sequence[dict]) -> dict:
    """Puts the timelines of several ranks into one; ValueError where a rank is there twice."""
    ranks = [entry for trace in traces for entry in trace["otherData"]["ranks"]]
    numbers = [entry["rank"] for entry in ranks]
    if len(set(numbers)) < len(numbers):
        raise ValueError(
            "expected the timelines of different ranks of one job, received ranks "
            f"{sorted(numbers)}: name each file once, and none of other jobs."
        )
    return {
        "traceEvents": [event for trace in traces for event in trace["traceEvents"]],
        "displayTimeUnit": "ms",
        "otherData": {"ranks": sorted(ranks, key=lambda entry: entry["rank"])},
    }
