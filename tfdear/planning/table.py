# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the planners and the simulator know about a table of embeddings. Imports no TensorFlow."""

import dataclasses

from tfdear.base.checks import is_whole

# Sizes and counts up to this limit are exact as floating-point numbers, too.
_MOST = 1 << 53


@dataclasses.dataclass(frozen=True)
class Table:
    """A layer of a trace that is a table of embeddings, and how many of its rows a batch uses.

    Use it to describe a table to the simulator. The counts are averages over the ranks.

    Args:
        layer: Name of the table's layer in the trace.
        rows: Rows of the table.
        columns: Values of a row.
        ids: Ids in a batch of one rank: the rows of its gradient before rows of the same id are
            summed.
        coalesced: How many different ones they are: the rows of the gradient after that.
        prior: How many of those occur in the next batch of any rank.
        workers: The number of ranks with which `prior` was found; with more it is larger.
        bags: How many bags a batch of one rank has, where the layer has a `combiner`: sums of
            vectors may travel in place of vectors. Defaults to 0: it has none.
        tokens: How many ids there are in these bags, without those that `mask_zero` leaves out: the
            ranks have to tell each other. Defaults to None: all `ids`.

    Raises:
        ValueError: A count is not a whole number, or larger than what it is a part of.

    Example:

    >>> from tfdear.trace import Table
    >>> Table("words", 1000, 64, ids=200, coalesced=120, prior=60, workers=4).columns
    64
    """

    layer: str
    rows: int
    columns: int
    ids: int
    coalesced: int
    prior: int
    workers: int
    bags: int = 0
    tokens: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.layer, str):
            raise ValueError(f"`layer` of a table must be a text. Received: layer={self.layer!r}")
        most = {}
        if self._all():
            different = min(self.ids, self.rows)
            most = {"coalesced": different, "prior": self.coalesced, "tokens": self.ids}
        for name in ("rows", "columns", "ids", "coalesced", "prior", "workers", "bags", "tokens"):
            number = getattr(self, name)
            if name == "tokens" and number is None:
                continue
            least = 1 if name in ("rows", "columns", "workers") else 0
            limit = most.get(name, _MOST)
            if not is_whole(number) or not least <= number <= limit:
                raise ValueError(
                    f"`{name}` of table {self.layer!r} must be a whole number from {least} to "
                    f"{limit}. Received: {name}={number!r}"
                )

    def _all(self) -> bool:
        return all(map(is_whole, (self.rows, self.ids, self.coalesced)))
