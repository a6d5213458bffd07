# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Training of a language model whose tables are sharded, plain, or have dense gradients.

The whole tables and slots of all variants would not fit into the memory of one machine together:
the variants are measured one after the other.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from tfdear.benchmarks.group import BenchmarkError, Group
from tfdear.benchmarks.settings import Settings
from tfdear.benchmarks.table import table_of

_BUILD_SECONDS = 600.0
_STEP_SECONDS = 120.0
# Steps of every turn that are not timed: FIRST_STEPS of ranks/keras_models.py.
_FIRST_STEPS = 2


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the model and of a rank's batch."""

    words: int
    columns: int
    units: int
    samples: int
    windows: int
    length: int

    @property
    def tokens(self) -> int:
        """Words of a rank's batch; there is no padding."""
        return self.windows * self.length


@dataclasses.dataclass(frozen=True)
class Variant:
    """How the tables are held and their gradients exchanged; `tables` as ranks take it."""

    tables: str
    framework: str = "with_tfdear"


VARIANTS = {
    "sharded": Variant("sharded"),
    "plain": Variant("plain"),
    "densified": Variant("densified"),
    "horovod": Variant("plain", "with_horovod"),
    "horovod densified": Variant("densified", "with_horovod"),
}


@dataclasses.dataclass
class Row:
    """What was measured of a variant; times in seconds per step, memory and traffic in bytes."""

    name: str
    seconds: list[float] = dataclasses.field(default_factory=list)
    sent: float = 0.0  # By the busiest rank in a step, headers included.
    memory: int = 0  # The most that a rank had.

    @property
    def median(self) -> float:
        """Median time of a step."""
        return statistics.median(self.seconds)


def measure(
    settings: Settings, *, variants: Sequence[str], sizes: Sizes, horovod_python: str | None
) -> dict[str, Any]:
    """Trains with every variant, one after the other, and prints a table.

    Args:
        settings: Where and how often; an iteration is a step.
        variants: Names of `VARIANTS`. Those of Horovod are left out where it is not there.
        sizes: Of the model.
        horovod_python: A Python that has Horovod, or None.

    Returns:
        What the JSON file holds.
    """
    rows = []
    for name in variants:
        variant = VARIANTS[name]
        python = sys.executable if variant.framework == "with_tfdear" else horovod_python
        if python is None:
            settings.tell(f"{name}: not there (--horovod-python names no Python)")
            continue
        try:
            rows.append(_row(settings, name, variant, python, sizes))
        except BenchmarkError as error:
            if variant.framework == "with_tfdear":
                raise
            settings.tell(f"{name}: not there; {python} cannot run it: {error}")
    _print(settings, rows, sizes)
    return {
        "benchmark": "embeddings train",
        "ranks": len(settings.lab.nodes),
        "rate_bits_per_second": settings.lab.bits_per_second,
        "sizes": dataclasses.asdict(sizes),
        "rows": [{**dataclasses.asdict(row), "median": row.median} for row in rows],
    }


def _row(settings: Settings, name: str, variant: Variant, python: str, sizes: Sizes) -> Row:
    row, steps = Row(name), settings.iterations
    limit = _STEP_SECONDS * (_FIRST_STEPS + steps)
    arguments = dataclasses.asdict(sizes)
    with Group(variant.framework, python, settings.lab, settings.pin) as group:
        group.call("build_language_model", _BUILD_SECONDS, tables=variant.tables, **arguments)
        group.call("train", limit, mode="together", steps=1)  # Makes its graph.
        before = settings.lab.bytes_sent()
        for _ in range(settings.repeats):
            of_ranks = group.call("train", limit, mode="together", steps=steps)
            row.seconds.append(max(of_ranks))
        sending = settings.repeats * (_FIRST_STEPS + steps)
        row.sent = settings.lab.most_sent_since(before) / sending
        row.memory = max(group.call("memory", limit))
    settings.tell(f"{name}: {row.median:.3f} s a step")
    return row


def _print(settings: Settings, rows: Sequence[Row], sizes: Sizes) -> None:
    ranks = len(settings.lab.nodes)
    cells = []
    for row in rows:
        cells.append(
            [
                ("tables", row.name),
                ("step s", f"{row.median:.3f}"),
                ("slowest", f"{max(row.seconds):.3f}"),
                ("tokens/s", f"{ranks * sizes.tokens / row.median:.0f}"),
                (f"of {rows[0].name}", f"{row.median / rows[0].median:.2f}"),
                ("MB sent", f"{row.sent / 1e6:.2f}"),
                ("memory MB", f"{row.memory / 1e6:.0f}"),
            ]
        )
    if cells:
        settings.tell(table_of(cells))
