# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What `DearStrategy.statistics()` says of tables of embeddings."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdear.engine.engine import Engine
from tfdear.engine.table_counts import RowCounts
from tfdear.gradients.row_travel import RowTravel
from tfdear.gradients.variable import DearVariable

_COUNTS = len(dataclasses.fields(RowCounts))
_NAMED_AS_THEIR_LAYER = "embeddings"  # What Keras calls the table of an embedding layer.


class TableReport:
    """Counts since the last call, and how tables are exchanged; `travel` knows the tables."""

    def __init__(self, engine: Engine, travel: RowTravel):
        self._engine = engine
        self._travel = travel
        self._before: dict[int, RowCounts] = {}

    def take(self) -> dict[str, dict[str, Any]]:
        """A dictionary for each table, by the names of their layers."""
        # The latest of a path: a model that was made anew may have left tables behind.
        tables = {table.creation_path: table for table in self._travel.tables()}
        names = names_of(list(tables))
        return {name: self._of(table) for name, table in zip(names, tables.values(), strict=True)}

    def _of(self, table: DearVariable) -> dict[str, Any]:
        counts = self._engine.row_counts(table.number)
        before = self._before.get(table.number, RowCounts(*[0] * _COUNTS))
        self._before[table.number] = counts
        seen = RowCounts(
            *(
                now - then
                for now, then in zip(
                    dataclasses.astuple(counts), dataclasses.astuple(before), strict=True
                )
            )
        )
        # Without a lookup of its own a table's gradient comes from elsewhere.
        original = _mean(seen.ids, seen.lookups)
        coalesced = _mean(seen.unique_ids, seen.lookups)
        coalesced = _mean(seen.rows, seen.steps) if coalesced is None else coalesced
        rows, *columns = table.shape.as_list()
        exchange = self._travel.exchange_of(table)
        if exchange == "auto":  # What most steps took.
            exchange = "all_reduce" if 2 * seen.summed_steps > seen.steps else "all_gather"
        costs = None
        if self._travel.choice is not None and coalesced is not None and len(columns) == 1:
            costs = self._travel.choice.compare(rows, columns[0], coalesced)
        placement = getattr(table, "placement", None)
        partition = None if placement is None else placement.partition
        return {
            "rows": rows,
            "columns": columns[0] if len(columns) == 1 else columns,
            "partition": partition.kind if partition is not None and partition.ranks > 1 else None,
            "exchange": exchange,
            "costs": costs,
            "steps": seen.steps,
            "summed_steps": seen.summed_steps,
            "original": original,
            "coalesced": coalesced,
            "hint": getattr(table, "hint", "none"),
            "foreseen_steps": seen.foreseen_steps,
            "prior": _mean(seen.prior_rows, seen.steps),
            "delayed": _mean(seen.delayed_rows, seen.steps),
            "early_vectors": _mean(seen.early_vectors, seen.lookups),
            "late_vectors": _mean(seen.late_vectors, seen.lookups),
            "density": None if coalesced is None else coalesced / rows,
            "bytes": {
                "ids": seen.id_bytes,
                "early_vectors": seen.early_vector_bytes,
                "late_vectors": seen.late_vector_bytes,
                "prior": seen.prior_bytes,
                "delayed": seen.delayed_bytes,
                "whole": seen.whole_bytes,
            },
        }


def names_of(paths: Sequence[str]) -> list[str]:
    """Names of tables by their paths: that of the layer, where it has one table; else the path."""
    short = []
    for path in paths:
        *layers, name = path.split("/")
        named_as_layer = bool(layers) and name == _NAMED_AS_THEIR_LAYER
        short.append(layers[-1] if named_as_layer else "/".join([*layers[-1:], name]))
    return [
        name if short.count(name) == 1 else path for name, path in zip(short, paths, strict=True)
    ]


def _mean(total: int, count: int) -> float | None:
    return total / count if count else None
