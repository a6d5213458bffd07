# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Event records that tests write down by hand, in milliseconds."""

from __future__ import annotations

import numpy as np

from tfdear.base import names
from tfdear.engine import events as event_record


def row(kind, ticket, subject, detail, begin, end, computation=0.0):
    """An event; times in milliseconds."""
    times = [round(value * 1000) for value in (begin, end, computation)]
    return (names.EVENT_KINDS.index(kind), ticket, subject, detail, *times)


def record(*events) -> np.ndarray:
    """The record of these events, in the order in which the engine would add them."""
    rows = np.array(list(events), event_record.EVENT_ROW)
    return rows[np.argsort(rows["end"], kind="stable")]


def dear_step(ticket: int, at: float):
    """A step of 100 ms that begins at `at`, of two buckets of 1000 and 3000 bytes.

    Forward 30 ms, backward 50 ms, then 20 ms of other work. The second reduce-scatter is exposed by
    half; so are the all-gathers, which are in the next step's forward pass.
    """
    yield row("step", ticket, 7, 2, at, at)
    for tensor, ready in enumerate((30, 35, 60, 80)):
        yield row("contribute", ticket, tensor, tensor // 2, at + ready - 1, at + ready)
    yield row("reduce_scatter", ticket, 0, 1000, at + 40, at + 50, 12)
    yield row("reduce_scatter", ticket, 1, 3000, at + 80, at + 100, 10)
    yield row("all_gather", ticket, 1, 3000, at + 102, at + 110, 4)
    yield row("all_gather", ticket, 0, 1000, at + 112, at + 116, 2)
    for tensor, ready in enumerate((110, 110, 116, 116)):
        yield row("update", ticket, tensor, 1, at + ready, at + ready + 1)
        yield row("await", ticket + 1, tensor, ticket + 1, at + 101, at + ready + 1)
        yield row("read", ticket + 1, tensor, ticket + 1, at + ready + 1, at + ready + 1)


def dear_steps(count: int, pauses: dict[int, float] | None = None) -> np.ndarray:
    """The record of so many steps; `pauses` are milliseconds before a step."""
    events, at = [], 5.0
    for ticket in range(count):
        at += (pauses or {}).get(ticket, 0.0)
        events += dear_step(ticket, at)
        at += 100
    return record(*events)
