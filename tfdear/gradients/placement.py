# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where the parts of a sharded table are, and which variables are created in parts."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

from tfdear.planning import partition as partition_module


@dataclasses.dataclass(frozen=True)
class Placement:
    """What one rank holds of a table."""

    partition: partition_module.Partition
    rank: int
    label: str  # The layer and its table, for messages.
    touched_only: bool = False  # Updates change only rows that a step touched.
    # How rows of gradients travel: "all_to_all" of a divided table; of a whole one they are
    # gathered ("all_gather"), summed on their way ("all_reduce"), or what costs less ("auto").
    exchange: str = "all_to_all"

    @property
    def shape(self) -> tuple[int, int]:
        """The rows and columns of the whole table."""
        return self.partition.rows, self.partition.columns

    @property
    def shard_shape(self) -> tuple[int, int]:
        """The rows and columns that this rank holds."""
        return self.partition.shape_of(self.rank)

    @property
    def column_begins(self) -> list[int]:
        """Where each rank's columns begin, and where the last ones end; empty: by rows."""
        if self.partition.kind == "row":
            return []
        ranges = [self.partition.columns_of(rank) for rank in range(self.partition.ranks)]
        return [*(columns.start for columns in ranges), ranges[-1].stop]

    @property
    def first_column(self) -> int:
        """The first of this rank's columns."""
        return self.partition.columns_of(self.rank).start

    @property
    def stride(self) -> int:
        """This rank holds the rows whose number is `offset`, modulo `stride`."""
        return self.partition.ranks if self.partition.kind == "row" else 1

    @property
    def offset(self) -> int:
        """See `stride`."""
        return self.rank if self.partition.kind == "row" else 0


_current: contextvars.ContextVar[Placement | None] = contextvars.ContextVar(
    "placement", default=None
)


@contextlib.contextmanager
def of_new_variables(placement: Placement | None) -> Iterator[None]:
    """Within it, variables are created in parts that are placed like this."""
    token = _current.set(placement)
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Placement | None:
    """The placement of variables that are created now; None: they are whole."""
    return _current.get()
