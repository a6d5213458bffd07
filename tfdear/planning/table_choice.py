# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which exchange the tables of a job get. Imports no TensorFlow.

[Note: Choosing an exchange]
Twice: when a table is made, from sizes, whether it is divided; and in every step whether the rows
of a table that all ranks have whole are gathered, or summed on their way, as in a dense all-reduce,
from how many rows all ranks have. Both follow from numbers that are the same on all ranks, and
change no bit of what is trained.

A rank never uses more rows than there are. So an exchange of a divided table moves no more than an
all-reduce of the whole, and, its ids apart, no more than a gather of rows. What a whole table saves
is starts of collectives, on the way of the forward pass. It pays with memory on every rank.
"""

import dataclasses

from tfdear.planning import embedding_costs
from tfdear.planning.cost_model import CommunicationCosts, LinearCost
from tfdear.planning.embedding_costs import Choice, ExchangeCosts
from tfdear.planning.partition import GRADIENT_BYTES
from tfdear.planning.table import Table

# How rows travel: `most_gathered` of the engine, beside numbers of rows.
ALWAYS_SUM = -1
NEVER_SUM = 1 << 62
# What a whole table must save of a step's exchange, and in seconds, to be worth its memory. A start
# takes so long on lines between continents; on a busy machine it may seem to take a tenth of that.
_WORTH = 0.1
_WORTH_SECONDS = 0.05
# Variables of an optimizer for each one of the table, where it is not known: those of Adam.
_SLOTS = 2
_INDEX_BYTES = 8
# Starts of collectives in a step: ids are counted and gathered, vectors and gradients exchanged;
# of a whole table rows are counted, and indices and values gathered.
_STARTS_DIVIDED = 4
_STARTS_WHOLE = 3


@dataclasses.dataclass(frozen=True)
class TableChoice:
    """Chooses exchanges by what all ranks of a job know alike.

    Args:
        ranks: Number of ranks.
        collectives: What collectives of all ranks cost, as one of them measured it.
        memory_bytes: What the rank with the least memory has of it.

    Example:

    >>> from tfdear import cost_model
    >>> from tfdear.planning.table_choice import TableChoice
    >>> choice = TableChoice(4, cost_model.ring(4, alpha=1e-4, beta=8e-9), 1 << 34)
    >>> choice.divides(200_000, 512)
    True
    """

    ranks: int
    collectives: CommunicationCosts
    memory_bytes: int

    @property
    def costs(self) -> ExchangeCosts:
        """What exchanges cost: an all-to-all as the gather, by the bytes that a rank sends."""
        gather = self.collectives.all_gather
        others = max(self.ranks - 1, 1)
        return ExchangeCosts(self.collectives, LinearCost(gather.a, gather.b * self.ranks / others))

    def divides(self, rows: int, columns: int, value_bytes: int = 4) -> bool:
        """Returns whether a table is divided, as nearly always.

        It is left whole where the exchange of a divided one takes longer by more than 50 ms, and a
        tenth, because starts take long: however many rows a step has. It must fit into half of the
        memory, with two slots.

        Args:
            rows: Rows of the table.
            columns: Columns of the table.
            value_bytes: Bytes of a value of a vector, in the type of the computation. Defaults to
                4.
        """
        start = self.collectives.all_gather.a
        whole = _STARTS_WHOLE * start + self._summed(rows, columns)
        choice = self._choice(rows, columns, rows, value_bytes)
        # `choose` counts three starts of an all-to-all.
        divided = choice.seconds["all_to_all"] + (_STARTS_DIVIDED - 3) * self.costs.all_to_all.a
        saved = divided - whole
        fits = rows * columns * GRADIENT_BYTES * (1 + _SLOTS) <= self.memory_bytes / 2
        return not (fits and saved > _WORTH_SECONDS and saved > _WORTH * divided)

    def most_gathered(self, rows: int, columns: int) -> int:
        """Returns how many rows of all ranks together are gathered; more of them are summed.

        Args:
            rows: Rows of the table.
            columns: Columns of the table.
        """
        gather = self.collectives.all_gather
        per_row = gather.b * (GRADIENT_BYTES * columns + _INDEX_BYTES)
        if per_row <= 0:
            return NEVER_SUM
        # One start more: bits, rows and sums instead of indices and values. And it is more work.
        most = ((1 + _WORTH) * self._summed(rows, columns) + gather.a) / per_row
        # No rank has more than all rows.
        return int(max(most, rows)) if most < rows * self.ranks else NEVER_SUM

    def _summed(self, rows: int, columns: int) -> float:
        """Seconds of bytes where all rows of a table are summed on their way."""
        table = rows * columns * GRADIENT_BYTES
        others = self.ranks - 1
        bits = self.collectives.all_gather.b * (rows / 8) * self.ranks
        return (
            bits
            + self.costs.all_to_all.b * table * others / self.ranks
            + self.collectives.all_gather.b * table
        )

    def exchange(self, rows: int, columns: int, used: float) -> str:
        """Returns how the table of a `ShardedEmbedding` with `exchange="auto"` travels in a step.

        Args:
            rows: Rows of the table.
            columns: Columns of the table.
            used: Rows that a rank uses in the step.
        """
        if self.divides(rows, columns):
            return "all_to_all"
        summed = self.ranks * used > self.most_gathered(rows, columns)
        return "all_reduce" if summed else "all_gather"

    def compare(self, rows: int, columns: int, used: float) -> dict[str, float]:
        """Returns the seconds of each exchange in a step, if a rank uses so many rows."""
        used = min(max(round(used), 0), rows)
        return dict(self._choice(rows, columns, used).seconds)

    def _choice(self, rows: int, columns: int, used: int, value_bytes: int = 4) -> Choice:
        table = Table("", rows, columns, used, used, 0, max(self.ranks, 1))
        return embedding_costs.choose(table, self.ranks, self.costs, value_bytes=value_bytes)
