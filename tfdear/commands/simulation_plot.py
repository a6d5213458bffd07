# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The picture of `tfdear simulate`: efficiency over workers, one panel per schedule."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tfdear.base import extras
from tfdear.planning.trace import Trace
from tfdear.simulator import Network, Result

_BOUNDS = {"dear": "dear", "dear_barrier": "dear_barrier", "wfbp": "all_reduce"}
_COLUMNS = 3


def draw(
    path: str,
    trace: Trace,
    network: Network,
    results: Sequence[Result],
    bounds: Mapping[int, Mapping[str, float]],
) -> None:
    """Draws the scaling efficiencies of `simulate` into a file whose suffix is the format.

    Not the speedups: on the logarithmic axis that they need, a loss of a fifth cannot be seen.
    """
    with extras.required("plot"):
        import matplotlib.artist
        import matplotlib.ticker
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    schedules = list(dict.fromkeys(result.schedule for result in results))
    planners = list(dict.fromkeys(result.planner for result in results))
    alone = trace.forward + trace.backward
    columns = min(_COLUMNS, len(schedules))
    rows = math.ceil(len(schedules) / columns)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    workers = sorted(bounds)
    for panel, schedule in zip(panels, schedules, strict=False):
        if schedule in _BOUNDS:
            limit = [100 * alone / bounds[count][_BOUNDS[schedule]] for count in workers]
            panel.plot(workers, limit, color="black", linestyle=":", label="bound")
        for index, planner in enumerate(planners):
            points = [r for r in results if (r.schedule, r.planner) == (schedule, planner)]
            panel.plot(
                [point.workers for point in points],
                [100 * point.efficiency for point in points],
                color=f"C{index}",
                marker="osd^vPX*"[index % 8],
                markersize=4,
                label=planner,
            )
        panel.set_title(schedule)
        panel.set_xscale("log", base=2)
        panel.set_ylim(0, 104)
        panel.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%g"))
        panel.grid(True, color="0.92")
    for panel in panels[len(schedules) :]:
        panel.set_axis_off()
    # The panels of a column share its axis: the lowest that is drawn shows the numbers.
    for column in range(columns):
        lowest = [panel for panel in panels[column::columns] if panel.axison][-1]
        lowest.xaxis.set_tick_params(labelbottom=True)
        lowest.set_xlabel("workers")
    for row in range(rows):
        panels[row * columns].set_ylabel("scaling efficiency (%)")
    # One legend for the lines of all panels.
    handles: dict[str, matplotlib.artist.Artist] = {}
    for panel in panels[: len(schedules)]:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels = list(handles)
    figure.legend(list(handles.values()), labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle(f"{trace.name}, {network.algorithm}")
    figure.savefig(path, dpi=130)
