# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which part of an embedding table each rank holds. Imports no TensorFlow.

By column, every rank has its columns of all rows: each lookup asks every rank for the same number
of bytes, whatever words are frequent. By row, a rank has whole rows, those whose id is its own
number modulo the ranks.
"""

import dataclasses
import functools
from collections.abc import Sequence

from tfdear.base.checks import is_whole

KINDS = ("column", "row")
# Widths in multiples of this keep the rows that a rank holds at whole cache lines.
_UNIT = 16
_MOST_ROWS = 2**31 - 1
_CACHE_LINE_BYTES = 64
GRADIENT_BYTES = 4
ID_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Partition:
    """A table of embeddings, divided among ranks.

    Args:
        kind: "column" or "row".
        rows: Rows of the whole table.
        columns: Columns of the whole table.
        ranks: Number of ranks.

    Raises:
        ValueError: The kind is unknown, a number is not a positive whole one, or there are more
            rows than int32 counts.

    Example:

    >>> from tfdear.planning.partition import Partition
    >>> Partition("column", rows=1000, columns=100, ranks=4).widths
    [32, 32, 16, 20]
    """

    kind: str
    rows: int
    columns: int
    ranks: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(
                f"`kind` of a partition must be one of {', '.join(KINDS)}. Received: {self.kind!r}"
            )
        _check_positive(rows=self.rows, columns=self.columns, ranks=self.ranks)
        if self.rows > _MOST_ROWS:
            raise ValueError(
                f"A table has at most {_MOST_ROWS:,} rows, whose numbers travel as int32. Map ids "
                f"to fewer. Received: {self.rows:,}"
            )

    @functools.cached_property
    def _bounds(self) -> list[int]:
        """Where each rank's columns begin, and where the last ones end."""
        units, rest = divmod(self.columns, _UNIT)
        if units >= self.ranks:
            widths = [_UNIT * count for count in _even(units, self.ranks)]
            widths[-1] += rest  # No rank has fewer columns than the last.
        else:
            widths = _even(self.columns, self.ranks)
        bounds = [0]
        for width in widths:
            bounds.append(bounds[-1] + width)
        return bounds

    @property
    def widths(self) -> list[int]:
        """How many columns each rank holds; by row, all of them."""
        return [len(self.columns_of(rank)) for rank in range(self.ranks)]

    def columns_of(self, rank: int) -> range:
        """Returns the columns that a rank holds; without any where there are too few."""
        self._check_rank(rank)
        if self.kind == "row":
            return range(self.columns)
        return range(self._bounds[rank], self._bounds[rank + 1])

    def rows_of(self, rank: int) -> int:
        """Returns how many rows a rank holds: by row, `rank`, `rank + ranks` and so on."""
        self._check_rank(rank)
        if self.kind == "column":
            return self.rows
        return len(range(rank, self.rows, self.ranks))

    def shape_of(self, rank: int) -> tuple[int, int]:
        """Returns the rows and columns of a rank's part."""
        return self.rows_of(rank), len(self.columns_of(rank))

    def vector_bytes(self, rank: int, asked: Sequence[int], value_bytes: int) -> int:
        """Returns what a rank sends to the others in the exchange of vectors, in bytes.

        Args:
            rank: The rank that sends.
            asked: For how many of the rows that this rank holds each rank asks: by column, its
                unique ids; by row, those that are this rank's modulo the ranks.
            value_bytes: Bytes of a value in the type of the computation.
        """
        self._check_counts("asked", asked)
        width = len(self.columns_of(rank))
        return (sum(asked) - asked[rank]) * width * value_bytes

    def gradient_bytes(self, rank: int, owed: Sequence[int]) -> int:
        """Returns what a rank sends to the others in the exchange of gradients, in bytes.

        Args:
            rank: The rank that sends.
            owed: For how many rows this rank has a gradient that goes to each rank: by column, its
                unique ids, the same number for all; by row, those that are that rank's.
        """
        self._check_counts("owed", owed)
        self._check_rank(rank)
        pairs = zip(owed, self.widths, strict=True)
        values = [count * width for count, width in pairs]
        return (sum(values) - values[rank]) * GRADIENT_BYTES

    def id_bytes(self, rank: int, owed: Sequence[int]) -> int:
        """Returns what a rank sends so that all holders know its ids, in bytes.

        Args:
            rank: The rank that sends.
            owed: As in `gradient_bytes`. A rank without columns gets the ids, too: they say which
                rows the next batch has.
        """
        self._check_counts("owed", owed)
        self._check_rank(rank)
        return (sum(owed) - owed[rank]) * ID_BYTES

    def _check_rank(self, rank: int) -> None:
        if not is_whole(rank) or not 0 <= rank < self.ranks:
            raise ValueError(f"`rank` must be one of {self.ranks} from 0. Received: rank={rank!r}")

    def _check_counts(self, name: str, counts: Sequence[int]) -> None:
        if len(counts) != self.ranks:
            raise ValueError(
                f"`{name}` must have a number for each of {self.ranks} ranks. "
                f"Received: {len(counts)} numbers"
            )


def choose(
    kind: str, rows: int, columns: int, ranks: int, value_bytes: int = GRADIENT_BYTES
) -> Partition:
    """Returns the partition of a table, of the given kind or of the cheaper one.

    Args:
        kind: "column", "row" or "auto".
        rows: Rows of the whole table.
        columns: Columns of the whole table.
        ranks: Number of ranks.
        value_bytes: Bytes of a value of the table. Defaults to 4.

    Raises:
        ValueError: The kind is unknown, or a number is not a positive whole one.

    By column costs the same on all ranks, by row as much as the rank whose rows are asked for
    most. But to read, send or write a few columns of a row takes as long as a cache line of them,
    on every rank: below that, more ranks make a lookup no cheaper, and "auto" divides by row.

    Example:

    >>> from tfdear.planning import partition
    >>> partition.choose("auto", 1000, 512, ranks=4).kind
    'column'
    >>> partition.choose("auto", 1000, 16, ranks=4).kind
    'row'
    """
    if kind != "auto":
        return Partition(kind, rows, columns, ranks)
    _check_positive(value_bytes=value_bytes)
    by_column = Partition("column", rows, columns, ranks)
    thin = min(by_column.widths) * value_bytes < _CACHE_LINE_BYTES
    # Alone, a rank has everything; by column its ids need no division.
    return Partition("row", rows, columns, ranks) if thin and ranks > 1 else by_column


def _even(total: int, ranks: int) -> list[int]:
    """A whole number in parts that differ by at most one, the larger ones first."""
    share, more = divmod(total, ranks)
    return [share + (rank < more) for rank in range(ranks)]


def _check_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if not is_whole(number) or number < 1:
            raise ValueError(f"`{name}` must be a positive whole number. Received: {number!r}")
