# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How the rows of tables' gradients travel, and what was counted of them."""

import math
import weakref

from tfdear.engine import engine as engine_module
from tfdear.gradients import variable as variable_module
from tfdear.gradients.sharded_variable import ShardedVariable
from tfdear.planning import table_choice
from tfdear.planning.table_choice import TableChoice

_MOST_GATHERED = {"all_reduce": table_choice.ALWAYS_SUM, "all_gather": table_choice.NEVER_SUM}


class RowTravel:
    """Tells the engine how rows travel; see [Note: Choosing an exchange].

    `exchange`: of tables whose layers say nothing about it, those of `keras.layers.Embedding`.
    """

    def __init__(
        self, engine: engine_module.Engine, choice: TableChoice | None, exchange: str = "auto"
    ):
        self.choice = choice
        self._engine = engine
        self._exchange = exchange
        self._tables: weakref.WeakValueDictionary[int, variable_module.DearVariable] = (
            weakref.WeakValueDictionary()
        )

    def tables(self) -> list[variable_module.DearVariable]:
        """The tables in use, in the order of creation."""
        return [table for _, table in sorted(self._tables.items())]

    def note(self, variable: variable_module.DearVariable) -> None:
        """Takes up a table that may get gradients by rows."""
        if variable.shape.is_fully_defined():
            self._tables[variable.number] = variable

    def tell(self, layout: int, tensor: int, variable: variable_module.DearVariable) -> None:
        """Says how the gradient of a variable travels, a tensor of a layout that was not used."""
        self.note(variable)
        rows, most_gathered = 0, table_choice.NEVER_SUM
        exchange = self.exchange_of(variable)
        if exchange != "all_to_all" and variable.shape.is_fully_defined():
            rows, *columns = variable.shape.as_list()
            most_gathered = self._most_gathered(exchange, rows, math.prod(columns))
        self._engine.set_table(layout, tensor, variable.number, rows, most_gathered)

    def exchange_of(self, variable: variable_module.DearVariable) -> str:
        """What was chosen for a table; "auto": to gather or to sum, in every step anew."""
        if isinstance(variable, ShardedVariable):
            return variable.placement.exchange
        return "auto" if self._exchange == "all_to_all" else self._exchange

    def _most_gathered(self, exchange: str, rows: int, columns: int) -> int:
        if exchange in _MOST_GATHERED:
            return _MOST_GATHERED[exchange]
        if self.choice is None:
            return table_choice.NEVER_SUM
        return self.choice.most_gathered(rows, columns)
