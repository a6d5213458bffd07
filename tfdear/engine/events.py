# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the engine records about itself, as Python sees it. No TensorFlow."""

import dataclasses

import numpy as np

from tfdear.base import names

_SECONDS = 1e-6


@dataclasses.dataclass(frozen=True)
class Event:
    """One thing that happened in the engine; see `event_record.h` for the meaning of the fields."""

    kind: str
    ticket: int
    subject: int
    detail: int
    begin: float
    end: float
    computation: float = 0.0


# A row of the record as the engine hands it out; times in microseconds of the steady clock.
EVENT_ROW = np.dtype([(field.name, np.int64) for field in dataclasses.fields(Event)])


def to_events(rows: np.ndarray) -> list[Event]:
    """Rows of the record as objects, with times in seconds."""
    return [
        Event(names.EVENT_KINDS[kind], ticket, subject, detail, *(_SECONDS * t for t in times))
        for kind, ticket, subject, detail, *times in rows.tolist()
    ]
