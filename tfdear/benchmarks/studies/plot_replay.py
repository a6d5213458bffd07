# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Draws the results of `tfdear benchmark replay --json FILE`: schedules over their bound.

Lines are by the clock of the sleeping device, crosses are the same iterations by the real clock.

Example:

    tfdear benchmark replay --ranks 2 --json replay_2.json
    tfdear benchmark replay --ranks 4 --json replay_4.json
    python tfdear/benchmarks/studies/plot_replay.py replay_2.json replay_4.json -o replay.png
"""

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

_NAMES = {
    "dear": "dear",
    "dear_barrier": "dear with the paper's barrier",
    "bytescheduler": "bytescheduler",
    "wfbp": "wfbp (all-reduce under backward)",
    "sequential": "sequential",
    "torch DDP": "PyTorch DDP",
}
_COLORS = {
    "dear": "#1b7837",
    "dear_barrier": "#7fbf7b",
    "bytescheduler": "#2166ac",
    "wfbp": "#e08214",
    "sequential": "#999999",
    "torch DDP": "#b2182b",
}


def main() -> None:
    """Draws one panel per file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("-o", "--output", required=True, type=pathlib.Path)
    options = parser.parse_args()
    results = [json.loads(path.read_text()) for path in options.files]
    figure, panels = pyplot.subplots(
        1, len(results), figsize=(5.2 * len(results), 3.9), sharey=True, squeeze=False
    )
    for panel, result in zip(panels[0], results, strict=True):
        _draw(panel, result)
    panels[0][0].set_ylabel("iteration time / max(computation, communication)")
    panels[0][0].legend(fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(options.output, dpi=130)


def _draw(panel, result) -> None:
    ratios = result["ratios"]
    positions = range(len(ratios))
    for schedule, name in _NAMES.items():
        drawn, device, wall = [], [], []
        for position, ratio in zip(positions, ratios, strict=True):
            cases = [case for case in ratio["cases"] if case["schedule"] == schedule]
            if not cases:
                continue
            case = min(cases, key=lambda case: case["median"])
            least = max(ratio["forward"] + ratio["backward"], ratio["communication"])
            drawn.append(position)
            device.append(case["median"] / least)
            wall.append(case["median_wall"] / least)
        if drawn:
            panel.plot(drawn, device, "o-", label=name, color=_COLORS[schedule], markersize=4)
            panel.plot(drawn, wall, "x", color=_COLORS[schedule], markersize=7)
    panel.plot([], [], "x", color="black", label="the same, wall time")
    panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    panel.set_xticks(list(positions), [f"{ratio['ratio']:g}" for ratio in ratios])
    panel.set_xlabel("communication / computation")
    rate = result["rate_bits_per_second"] / 1e9
    panel.set_title(f"{result['trace']}, {result['ranks']} ranks, {rate:g} Gbit/s", fontsize=10)
    panel.set_ylim(0.95, 2.2)


if __name__ == "__main__":
    main()
