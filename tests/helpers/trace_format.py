# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the trace-event format asks of a trace, for the kinds of events that tfdear writes."""

from __future__ import annotations

import collections
import json
import numbers

_METADATA = {
    "process_name": "name",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


def check_trace(trace: dict) -> None:
    """Fails unless the trace is valid JSON in the object format, with nested spans."""
    assert json.loads(json.dumps(trace)) == trace
    assert isinstance(trace["traceEvents"], list)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    spans = collections.defaultdict(list)
    named, used = set(), set()
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str) and event["name"]
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert isinstance(event.get("args", {}), dict)
        line = event["pid"], event["tid"]
        if event["ph"] == "M":
            key = _METADATA[event["name"]]
            assert isinstance(event["args"][key], str if key == "name" else int)
            if event["name"] == "thread_name":
                assert line not in named, f"{line} has two names"
                named.add(line)
            continue
        used.add(line)
        assert isinstance(event["ts"], numbers.Real) and isinstance(event["cat"], str)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            spans[line].append((event["ts"], event["ts"] + event["dur"]))
        else:
            assert event["ph"] == "i" and event["s"] in ("g", "p", "t")
    assert used <= named, f"threads without a name: {used - named}"
    for line, pieces in spans.items():
        open_ends: list[float] = []
        for begin, end in sorted(pieces, key=lambda piece: (piece[0], -piece[1])):
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            # A span begins and ends inside the one that is open, or outside of it.
            assert not open_ends or end <= open_ends[-1], f"spans of thread {line} cross"
            open_ends.append(end)
