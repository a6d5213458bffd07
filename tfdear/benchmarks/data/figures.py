# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a case measured, each figure beside its limit."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from tfdear.benchmarks.table import table


@dataclasses.dataclass(frozen=True)
class Figure:
    """A ratio, and what it has to be at least, or at most."""

    case: str
    what: str
    value: float
    limit: float
    at_least: bool = True

    @property
    def holds(self) -> bool:
        """Whether the limit is kept."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclasses.dataclass
class Findings:
    """All that the cases of a benchmark found."""

    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    figures: list[Figure] = dataclasses.field(default_factory=list)

    def table(self) -> str:
        """The figures with their limits."""
        rows = [
            [
                each.case,
                each.what,
                f"{each.value:.3f}",
                f"{'>=' if each.at_least else '<='} {each.limit:g}",
                "yes" if each.holds else "NO",
            ]
            for each in self.figures
        ]
        return table(rows, header=["case", "figure", "measured", "limit", "kept"], num_left=2)

    def document(self) -> dict[str, Any]:
        """What the JSON file holds."""
        figures = [{**dataclasses.asdict(each), "holds": each.holds} for each in self.figures]
        return {"benchmark": "data", "rows": self.rows, "figures": figures}


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the ratios within turns."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))
