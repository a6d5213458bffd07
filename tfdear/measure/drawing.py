# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A timeline as a picture: a block of lines per rank, a colour per phase. No TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tfdear.base import extras, names
from tfdear.base.names import STEP_KINDS, Group, Operation, WireFormat
from tfdear.measure import timeline

_MILLISECONDS = 1e-3
# Okabe and Ito's colours, which people with any colour vision can tell apart.
_COLOUR_OF_OPERATION = {
    Operation.REDUCE_SCATTER: "#D55E00",
    Operation.REDUCE: "#D55E00",
    Operation.ALL_GATHER: "#E69F00",
    Operation.BROADCAST: "#E69F00",
    Operation.ALL_REDUCE: "#CC79A7",
}
_SPARSE_COLOUR = "#F0E442"
_OTHER_COLOUR = "#000000"
# In the order of the legend: of one group dense phases come first.
_PHASES = sorted(
    STEP_KINDS,
    key=lambda kind: (
        kind.wire_format == WireFormat.SELECTED,
        kind.group != Group.WORLD,
        kind.wire_format,
    ),
)
_COLOURS = {
    "forward": "#56B4E9",
    "backward": "#0072B2",
    **{
        kind.name: _COLOUR_OF_OPERATION.get(kind.operation, _OTHER_COLOUR)
        if kind.wire_format == WireFormat.DENSE
        else _SPARSE_COLOUR
        for kind in _PHASES
    },
    # Rows go to ranks that hold them, and vectors come from there, as in the halves of a sum.
    "embedding_ids": _SPARSE_COLOUR,
    "embedding_vectors": _COLOUR_OF_OPERATION[Operation.ALL_GATHER],
    "embedding_prior": _COLOUR_OF_OPERATION[Operation.REDUCE_SCATTER],
    "embedding_split": _OTHER_COLOUR,
    "embedding_delayed": _COLOUR_OF_OPERATION[Operation.ALL_REDUCE],
    "wait": "#666666",
    "reads wait": "#BBBBBB",
    "update": "#009E73",
}
# Steps of the two levels keep their names.
_LABELS = {
    "wait": "ops wait",
    **{
        kind: kind.removeprefix("embedding_")
        for kind in (*names.TABLE_EXCHANGES, names.TABLE_SPLIT)
    },
    **{
        kind.name: kind.name.replace("sparse_", "sparse ").replace("_", "-")
        for kind in STEP_KINDS
        if kind.group == Group.WORLD or kind.wire_format == WireFormat.SELECTED
    },
}
# On which numbers are white.
_DARK = {
    *("backward", "update"),
    *(names.step_kind(half).name for half in (Operation.REDUCE_SCATTER, Operation.REDUCE)),
}
_SHOWN = (
    timeline.PASSES,
    timeline.WAITS,
    timeline.COMMUNICATION,
    timeline.WITHIN_NODES,
    timeline.BETWEEN_NODES,
    timeline.TABLES,
    timeline.READS,
    timeline.UPDATES,
)
_WIDTH_INCHES = 15.0
_LINE_INCHES = 0.34
_PIXELS_PER_INCH = 130
# More would run into the title.
_LEGEND_COLUMNS = 9
# Narrower bars get no number.
_LEAST_INCHES_FOR_TEXT = {"number": 0.10, "word": 0.55}


def draw(
    trace: dict, path: str | os.PathLike, *, num_steps: int = 3, first_step: int | None = None
) -> None:
    """Draws some steps of a timeline.

    Bars carry the numbers of their buckets; the ticks below the passes are gradients as they become
    ready; the legend says so. The ending of the path says which format the picture has. Where no
    first step is given, steps of typical time are drawn; one that the trace lacks is a ValueError.
    """
    with extras.required("plot"):
        import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    passes = [e for e in spans if e["name"] in ("forward", "backward")]
    ranks = [entry["rank"] for entry in trace["otherData"]["ranks"]]
    begins = {
        event["args"]["step"]: event["ts"]
        for event in passes
        if event["name"] == "forward" and event["pid"] == ranks[0]
    }
    steps = _choose(begins, num_steps, first_step)
    shown = [event for event in passes if event["args"]["step"] in steps]
    begin = min(event["ts"] for event in shown)
    end = max(event["ts"] + event["dur"] for event in shown)
    # The all-gathers of the last step are in the forward pass of the next.
    following = [e["ts"] + e["dur"] for e in passes if e["args"]["step"] == steps[-1] + 1]
    end = min([end + 0.5 * (end - begin) / len(steps), *following]) if following else end

    lines = [line for line in _SHOWN if any(timeline.line_of(event) == line for event in spans)]
    rows = {(rank, line): -i for i, (rank, line) in enumerate((r, n) for r in ranks for n in lines)}
    figure, axes = pyplot.subplots(
        figsize=(_WIDTH_INCHES, 1.4 + _LINE_INCHES * len(rows)), dpi=_PIXELS_PER_INCH
    )
    inches_per_us = 0.86 * _WIDTH_INCHES / (end - begin)
    present: dict[str, Any] = {}
    ticks = numbers = False
    for event in trace["traceEvents"]:
        if not begin <= event.get("ts", begin - 1) + event.get("dur", 0) or event["ts"] > end:
            continue
        row = rows.get((event["pid"], timeline.line_of(event)))
        if event["ph"] == "X" and row is not None:
            bar = _bar(axes, event, row, begin, end, inches_per_us)
            present.setdefault(event["cat"], bar)
            numbers = numbers or event["args"].get("bucket") is not None
        elif timeline.line_of(event) == timeline.GRADIENTS:
            row = rows[event["pid"], timeline.PASSES]
            at = (event["ts"] - begin) * _MILLISECONDS
            axes.plot([at, at], [row - 0.5, row - 0.36], color="black", linewidth=0.6)
            ticks = True
    _step_borders(axes, passes, ranks, rows, lines, begin, end)
    axes.set_xlim(0, (end - begin) * _MILLISECONDS)
    axes.set_ylim(-len(rows) + 0.4, 0.6)
    axes.set_yticks(list(rows.values()), [f"rank {rank}  {line}" for rank, line in rows])
    for i in range(1, len(ranks)):
        axes.axhline(-i * len(lines) + 0.5, color="black", linewidth=0.8)
    axes.set_xlabel("time in ms")
    axes.set_title(
        f"Steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"Step {steps[0]}",
        loc="left",
        pad=14,
    )
    ordered = [category for category in _COLOURS if category in present]
    entries = [(present[category], _LABELS.get(category, category)) for category in ordered]
    if numbers:
        entries.append((_mark("$0$", 5), "number of the bucket"))
    if ticks:
        entries.append((_mark("|", 7), "a gradient is ready"))
    handles, labels = zip(*entries, strict=True)
    axes.legend(
        handles,
        labels,
        # In as few lines as go beside the title, and as short ones.
        ncols=-(-len(entries) // -(-len(entries) // _LEGEND_COLUMNS)),
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        columnspacing=1.2,
        handletextpad=0.5,
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _choose(begins: Mapping[int, float], num_steps: int, first_step: int | None) -> Sequence[int]:
    """The steps to draw, given when each began."""
    steps = list(begins)
    if not steps:
        raise ValueError(
            "the timeline has no steps: no gradients were reduced behind updates while it was "
            "recorded, so there is nothing to draw. Merge it into a JSON file and open that."
        )
    if num_steps < 1:
        raise ValueError(f"expected at least one step to draw, received {num_steps}.")
    if first_step is not None and first_step not in begins:
        raise ValueError(
            f"step {first_step} is not in the timeline: expected one of {steps[0]} to {steps[-1]}."
        )
    if first_step is not None:
        first = steps.index(first_step)
    else:
        # The median of all runs of so many steps: no pause between epochs, no first step.
        times = list(begins.values())
        runs = range(max(len(steps) - num_steps, 0))
        in_order = sorted(runs, key=lambda i: times[i + num_steps] - times[i])
        first = in_order[len(in_order) // 2] if in_order else 0
    return steps[first : first + num_steps]


def _mark(marker: str, size: float) -> Any:
    """An entry of the legend for what is no bar."""
    from matplotlib import lines

    return lines.Line2D([], [], color="black", marker=marker, markersize=size, linestyle="none")


def _bar(axes: Any, event: dict, row: int, begin: float, end: float, inches_per_us: float) -> Any:
    left, right = max(event["ts"], begin), min(event["ts"] + event["dur"], end)
    (bar,) = axes.barh(
        row,
        (right - left) * _MILLISECONDS,
        left=(left - begin) * _MILLISECONDS,
        height=0.72,
        color=_COLOURS.get(event["cat"], "#999999"),
        edgecolor="white",
        linewidth=0.4,
    )
    bucket = event["args"].get("bucket")
    is_pass = event["cat"] in ("forward", "backward")
    text = event["cat"] if is_pass else "" if bucket is None else str(bucket)
    least = _LEAST_INCHES_FOR_TEXT["word" if is_pass else "number"]
    if text and (right - left) * inches_per_us >= least:
        middle = ((left + right) / 2 - begin) * _MILLISECONDS
        colour = "white" if event["cat"] in _DARK else "black"
        axes.text(middle, row, text, ha="center", va="center", fontsize=8, color=colour)
    return bar


def _step_borders(axes, passes, ranks, rows, lines, begin, end) -> None:
    """A thin line on each rank where a step begins, with its number above the topmost one."""
    for event in passes:
        if event["name"] != "forward" or not begin <= event["ts"] < end:
            continue
        at = (event["ts"] - begin) * _MILLISECONDS
        top = rows[event["pid"], lines[0]] + 0.5
        axes.plot([at, at], [top, top - len(lines)], color="black", linewidth=0.6, linestyle=":")
        if event["pid"] == ranks[0]:
            step = event["args"]["step"]
            axes.text(at, top + 0.02, f"{step}", ha="left", va="bottom", fontsize=8)
