# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The number of trials that each search for a bucket size needs, on simulated step times.

The workloads are the shipped traces on simulated 10 Gbit/s Ethernet (the ring of the DeAR paper's
cluster). Searches are told times with noise. One has arrived when its best size so far is, without
noise, within 5 % of the best of a fine grid, and stays so for all later trials. Prints a table;
with --json FILE, writes its numbers.

Reference: Zhang et al., "DeAR", section VI-G and Figure 10.
"""

import argparse
import functools
import math
import statistics

import numpy as np

from tfdear import fusion, simulator
from tfdear.benchmarks import report
from tfdear.planning import schedules

_TRIALS = 40
_NEAR = 1.05
_LOW, _HIGH = 1_000_000, 100_000_000
# Much finer than the grid of a search, whose distance from the best size would else be luck.
_FINE_GRID = 400


def searches():
    """Functions that make the searches, by name; their argument is a seed."""
    return {
        "Bayesian": lambda seed: fusion.Bayesian(),
        'Bayesian(start="planned")': lambda seed: fusion.Bayesian(start="planned"),
        "RandomSearch": lambda seed: fusion.RandomSearch(trials=_TRIALS, seed=seed),
        "GridSearch": lambda seed: fusion.GridSearch(trials=20),
    }


class Workload:
    """A model on a network: its step time as a function of the buckets."""

    def __init__(self, name: str, workers: int, network: simulator.Network, schedule: str):
        self.name = f"{name}, {workers} workers"
        self.schedule = schedule
        self.trace = simulator.load(name)
        self.costs = network.costs(workers)
        self.step_time = functools.cache(self._step_time)
        grid = np.geomspace(_LOW, _HIGH, _FINE_GRID)
        self.best = min(self.step_time(int(size)) for size in grid)

    def _step_time(self, size: int) -> float:
        buckets = fusion.FixedSize(size).buckets(self.trace, self.costs, self.schedule)
        return schedules.timeline(self.schedule, buckets, self.trace, self.costs).iteration_time

    def run(self, planner, noise: float, seed: int) -> list[float]:
        """Lets `planner` search; returns the step time of its best over the best, by trial."""
        random = np.random.default_rng(1000 + seed)
        planner.buckets(self.trace, self.costs, self.schedule)  # It may use the profile.
        ratios = []
        while not planner.done:
            measured = self.step_time(planner.bytes) * (1 + noise * random.standard_normal())
            planner.observe(measured)
            ratios.append(self.step_time(planner.best) / self.best)
        return ratios


def arrival(ratios: list[float]) -> float:
    """The first trial after which the best stays near; infinite if it does not arrive."""
    far = [trial for trial, ratio in enumerate(ratios, start=1) if ratio > _NEAR]
    if far and far[-1] == len(ratios):
        return math.inf
    return far[-1] + 1 if far else 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--noise", type=float, default=0.03, help="of one step (default 0.03)")
    parser.add_argument("--steps", type=int, default=10, help="steps of a trial (default 10)")
    parser.add_argument("--workers", type=int, nargs="+", default=[64])
    parser.add_argument("--schedule", choices=schedules.SCHEDULES, default="dear")
    parser.add_argument("--alpha", type=float, default=2.5e-5, help="seconds (default 2.5e-5)")
    parser.add_argument("--beta", type=float, default=8e-10, help="s/byte (default 8e-10)")
    parser.add_argument("--json", metavar="FILE", help="file to write the numbers to")
    options = parser.parse_args()

    noise = options.noise / math.sqrt(options.steps)
    network = simulator.Network("ring", alpha=options.alpha, beta=options.beta)
    print(
        f"{options.seeds} seeds, {options.noise:.0%} noise a step, {options.steps} steps a trial\n"
        f"{'workload':26} {'search':26} {'near after 8':>12} {'trials: median':>15} {'all':>5} "
        f"{'worst after 8':>14}"
    )
    rows = []
    for workers in options.workers:
        for name in simulator.shipped_traces():
            workload = Workload(name, workers, network, options.schedule)
            for search, make in searches().items():
                runs = [workload.run(make(seed), noise, seed) for seed in range(options.seeds)]
                after_8 = [ratios[:8][-1] for ratios in runs]
                arrivals = [arrival(ratios) for ratios in runs]
                row = {
                    "workload": workload.name,
                    "search": search,
                    "near_after_8": sum(ratio <= _NEAR for ratio in after_8),
                    "median_trials": statistics.median(arrivals),
                    "most_trials": max(arrivals),
                    "worst_after_8": max(after_8),
                }
                rows.append(row)
                print(
                    f"{row['workload']:26} {search:26} {row['near_after_8']:9}/{options.seeds} "
                    f"{row['median_trials']:15g} {row['most_trials']:5g} "
                    f"{row['worst_after_8']:14.3f}"
                )
    if options.json:
        for row in rows:  # JSON knows no infinity: null stands for "did not arrive".
            for key in ("median_trials", "most_trials"):
                row[key] = None if math.isinf(row[key]) else row[key]
        report.write(options.json, {"options": vars(options), "rows": rows})


if __name__ == "__main__":
    main()
