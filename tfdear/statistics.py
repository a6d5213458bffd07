# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where the time of communication went, from the engine's event record. No TensorFlow."""

from collections.abc import Sequence

from tfdear import engine as engine_module

_GRADIENT_COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce", "sparse_gather")


def summarize(events: Sequence[engine_module.Event]) -> dict:
    """Times and overlap of the recorded steps.

    A collective is hidden as far as the process computed while it was on the line. That is measured
    by processor time: what the process used meanwhile, less what its communication threads used.
    With several threads of computation, their times are added up before they are compared with the
    collective's, so the overlap is then an upper bound.

    Args:
        events: The engine's events.

    Returns:
        A dict of: `steps` (reductions of gradients seen), seconds in `reduce_scatter`,
        `all_gather`, `all_reduce`, `sparse_gather`, `update`, of `communication` (gradients, time
        with a collective on the line) and of it `exposed`; `overlap` (the hidden fraction, None
        without communication) and `bytes` (payload of the gradients' buckets).
    """
    line = [event for event in events if event.kind in _GRADIENT_COLLECTIVES]
    communication = sum(event.end - event.begin for event in line)
    hidden = sum(min(event.end - event.begin, event.computation) for event in line)
    summary: dict = {"steps": len({event.ticket for event in line})}
    for kind in (*_GRADIENT_COLLECTIVES, "update"):
        summary[kind] = sum(event.end - event.begin for event in events if event.kind == kind)
    summary["communication"] = communication
    summary["exposed"] = communication - hidden
    summary["overlap"] = hidden / communication if communication > 0 else None
    summary["bytes"] = sum(event.detail for event in line if event.kind != "all_gather")
    return summary
