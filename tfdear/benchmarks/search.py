# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Searches for a bucket size in real training, compared with a grid of sizes.

The grid is measured first, in turns. Every seed is then a `fit` of its own, with other weights,
data and noise: in it the searches run one after the other, as any planner that searches does, and
the sizes that they found take turns with the best of the grid and with 25 MiB.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdear import fusion
from tfdear.benchmarks import peers
from tfdear.benchmarks.group import BenchmarkError, Group
from tfdear.benchmarks.settings import Settings
from tfdear.benchmarks.table import table_of

_CLOSE = 1.05
_FIT_SECONDS = 900.0
_STEPS_PER_FIT = 5000
# Turns of each size of the grid; the first is not counted, as a training starts slower.
_GRID_TURNS = 4
_GRID_SEED = 1000
_GRID_RANGE = (1_000_000, 100_000_000)
_START = fusion.FixedSize().bytes
BATCH_SIZES = {"perceptron": 64, "convolutional": 8}


@dataclasses.dataclass
class Found:
    """What a search found in one `fit`."""

    seed: int
    trials: list[tuple[int, float]]  # Bucket bytes and seconds per step.
    size: int  # The bucket bytes that it found.
    # Step time with this size over that with the grid's best in the same turn, the median of turns.
    ratio: float


@dataclasses.dataclass
class ModelResult:
    """What was measured with one model."""

    model: str
    grid: list[tuple[int, list[float]]]  # Seconds per step of every size.
    # Standard deviation of the trials of one size, relative: the noise of the machine.
    scatter: float
    start_over_best: list[float]  # Step time of 25 MiB over that of the grid's best, per `fit`.
    searches: dict[str, list[Found]]

    @property
    def best(self) -> int:
        """The best size of the grid."""
        relative = _of_turns(self.grid)
        return min(relative, key=lambda size: statistics.median(relative[size]))


def measure(
    settings: Settings,
    *,
    models: Sequence[str],
    searches: Sequence[str],
    seeds: Sequence[int],
    noise: float,
    grid: int,
) -> dict[str, Any]:
    """Measures the grid and the searches of every model and prints tables.

    An iteration of the settings is a step of a measurement. "{seed}" in a search stands for one of
    the `seeds`, each of which is a `fit`. `noise` is added to the step times that searches are
    told, relative. The `grid` has that many sizes and 25 MiB. Returns what the JSON file holds.
    """
    with contextlib.ExitStack() as stack:
        group = peers.open_tfdear(stack, settings)
        results = []
        for model in models:
            fit = _Fit(settings, group, model, noise)
            result = _measure_grid(fit, grid)
            for seed in seeds:
                _search(fit, result, searches, seed)
            results.append(result)
    for result in results:
        _print(result, settings.tell)
    return {
        "benchmark": "search",
        "ranks": len(settings.lab.nodes),
        "rate_bits_per_second": settings.lab.bits_per_second,
        "noise": noise,
        "models": [dataclasses.asdict(result) | {"best": result.best} for result in results],
    }


@dataclasses.dataclass(frozen=True)
class _Fit:
    settings: Settings
    group: Group
    model: str
    noise: float

    def run(self, searches: Sequence[str], sizes: Sequence[int], turns: int, seed: int) -> dict:
        found = self.group.call(
            "searched_fit",
            _FIT_SECONDS,
            model=self.model,
            batch_size=BATCH_SIZES[self.model],
            most_steps=_STEPS_PER_FIT,
            assignment={
                "searches": [text.replace("{seed}", str(seed)) for text in searches],
                "sizes": list(sizes),
                "turns": turns,
                "steps_per_trial": self.settings.iterations,
                "noise": self.noise,
                "seed": seed,
            },
        )[0]
        if found is None:
            raise BenchmarkError(
                f"{self.model}: {_STEPS_PER_FIT} steps were over before everything was measured; "
                "take fewer trials, turns or steps per trial"
            )
        return found


def _measure_grid(fit: _Fit, count: int) -> ModelResult:
    sizes = [*np.geomspace(*_GRID_RANGE, count).round().astype(int).tolist(), _START]
    seconds = [
        (size, times[1:]) for size, times in fit.run([], sizes, _GRID_TURNS, _GRID_SEED)["seconds"]
    ]
    scatter = statistics.median(
        statistics.stdev(times) / statistics.fmean(times) for _, times in seconds
    )
    result = ModelResult(fit.model, seconds, scatter, [], {})
    fit.settings.tell(f"{fit.model}, grid:")
    relative = {size: statistics.median(times) for size, times in _of_turns(seconds).items()}
    rows = [
        [
            ("bucket MB", f"{size / 1e6:.2f}"),
            ("step s", f"{statistics.median(times):.4f}"),
            ("of the best", f"{relative[size] / relative[result.best]:.3f}"),
        ]
        for size, times in seconds
    ]
    fit.settings.tell(table_of(rows))
    return result


def _of_turns(grid: Sequence[tuple[int, list[float]]]) -> dict[int, list[float]]:
    """Step times over the mean of their turn: what slows a whole turn does not depend on sizes."""
    means = [statistics.fmean(turn) for turn in zip(*(times for _, times in grid), strict=True)]
    return {
        size: [time / mean for time, mean in zip(times, means, strict=True)] for size, times in grid
    }


def _search(fit: _Fit, result: ModelResult, searches: Sequence[str], seed: int) -> None:
    answer = fit.run(searches, [result.best, _START], fit.settings.repeats, seed)
    seconds = dict(answer["seconds"])
    ratios = {
        size: statistics.median(
            time / best for time, best in zip(times, seconds[result.best], strict=True)
        )
        for size, times in seconds.items()
    }
    result.start_over_best.append(ratios[_START])
    line = f"{fit.model}, seed {seed}: 25 MiB {ratios[_START]:.3f}"
    for name, trials, size in zip(searches, answer["trials"], answer["found"], strict=True):
        ratio = ratios[size]
        found = Found(seed, [(nbytes, time) for nbytes, time in trials], size, ratio)
        result.searches.setdefault(name, []).append(found)
        kind = name.partition("(")[0]
        line += f"; {kind} {size / 1e6:.2f} MB {ratio:.3f} ({len(trials)})"
    fit.settings.tell(line)


def _print(result: ModelResult, tell: Callable[[str], None]) -> None:
    if not result.searches:
        return
    tell(
        f"{result.model}: 25 MiB takes {statistics.median(result.start_over_best):.3f} of the time "
        f"of the grid's best, {result.best / 1e6:.2f} MB; trials of one size scatter by "
        f"{result.scatter:.1%}"
    )
    rows = []
    for name, found in result.searches.items():
        ratios = [one.ratio for one in found]
        trials = [len(one.trials) for one in found]
        rows.append(
            [
                ("search", name),
                ("within 5 %", f"{sum(ratio <= _CLOSE for ratio in ratios)} of {len(found)}"),
                ("median", f"{statistics.median(ratios):.3f}"),
                ("worst", f"{max(ratios):.3f}"),
                ("trials", f"{statistics.median(trials):g}"),
                ("most", str(max(trials))),
            ]
        )
    tell(table_of(rows))
