# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where the time of communication went, from the engine's event record. No TensorFlow."""

from collections.abc import Iterable, Sequence

from tfdear import engine as engine_module

_GRADIENT_COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce", "sparse_gather")


def _union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _length(intervals: Iterable[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in intervals)


def _intersection(
    first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    common = []
    i = j = 0
    while i < len(first) and j < len(second):
        begin = max(first[i][0], second[j][0])
        end = min(first[i][1], second[j][1])
        if begin < end:
            common.append((begin, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return common


def summarize(events: Sequence[engine_module.Event]) -> dict:
    """Times and overlap of the recorded steps.

    Communication counts as exposed while some read of a variable is held back by it, whatever else
    the processor does meanwhile: the overlap reported is a lower bound.

    Args:
        events: The engine's events.

    Returns:
        A dict of: `steps` (reductions of gradients seen), seconds in `reduce_scatter`,
        `all_gather`, `all_reduce`, `sparse_gather`, `update`, of `communication` (gradients, time
        with at least one collective on the line) and of it `exposed`; `overlap` (the hidden
        fraction, None without communication) and `bytes` (payload of the gradients' buckets).
    """
    by_kind: dict[str, list[engine_module.Event]] = {kind: [] for kind in engine_module.EVENT_KINDS}
    for event in events:
        by_kind[event.kind].append(event)
    line = [event for kind in _GRADIENT_COLLECTIVES for event in by_kind[kind]]
    busy = _union((event.begin, event.end) for event in line)
    held_back = _union((event.begin, event.end) for event in by_kind["await"])
    exposed = _length(_intersection(busy, held_back))
    communication = _length(busy)
    summary: dict = {"steps": len({event.ticket for event in line})}
    for kind in _GRADIENT_COLLECTIVES:
        summary[kind] = sum(event.end - event.begin for event in line if event.kind == kind)
    summary["update"] = sum(event.end - event.begin for event in by_kind["update"])
    summary["communication"] = communication
    summary["exposed"] = exposed
    summary["overlap"] = 1 - exposed / communication if communication > 0 else None
    summary["bytes"] = sum(event.detail for event in line if event.kind != "all_gather")
    return summary
