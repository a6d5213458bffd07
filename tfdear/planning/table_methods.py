# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ways to exchange the tables of a model in training. Imports no TensorFlow."""

import dataclasses

from tfdear.base.names import SCHEDULES

# Orders in which nothing overtakes: what is asked for in the forward pass comes after all that
# was on its way.
_IN_ORDER = ("wfbp", "sequential")
_BY_PRIORITY = ("dear", "bytescheduler")


@dataclasses.dataclass(frozen=True)
class Method:
    """A way to exchange tables, with the schedules that the dense gradients can have beside it.

    Args:
        exchange: "all_reduce", "all_gather", "all_to_all", or "auto": for each table the fastest,
            and its rows and vectors split where that pays.
        schedules: Of the dense gradients.
        description: What it does, for readers.
        coalesced: Whether rows of the same id are summed before they travel.
        servers: How many ranks hold the rows of each table, by id; 0: all of them do. None: there
            are no servers, ranks hold the parts of a `Partition`.
        horizontal: Whether ids of the next batch are known beforehand, and rows and vectors
            overtake dense gradients.
        vertical: Whether rows that no next batch needs come last.
        early: Whether vectors that the step does not change come first.
        baseline: Whether it is one that sharded embeddings are compared with.
    """

    exchange: str
    schedules: tuple[str, ...]
    description: str
    coalesced: bool = True
    servers: int | None = None
    horizontal: bool = False
    vertical: bool = False
    early: bool = False
    baseline: bool = True


METHODS = {
    "dense": Method("all_reduce", SCHEDULES, "all-reduce of whole tables"),
    "byteps": Method(
        "all_reduce", ("bytescheduler",), "all tensors in slices by priority, over servers"
    ),
    "all_gather_raw": Method(
        "all_gather", SCHEDULES, "all-gather of a row for each id, as Horovod", coalesced=False
    ),
    "all_gather": Method("all_gather", SCHEDULES, "all-gather of a row for each different id"),
    "parameter_servers_1": Method("all_to_all", _IN_ORDER, "rows on one server", servers=1),
    "parameter_servers_2": Method("all_to_all", _IN_ORDER, "rows on two servers", servers=2),
    "parameter_servers": Method(
        "all_to_all", _IN_ORDER, "rows on as many servers as workers, as Parallax", servers=0
    ),
    "all_to_all": Method("all_to_all", _IN_ORDER, "shards on all ranks, no order", baseline=False),
    "+horizontal": Method(
        "all_to_all",
        _BY_PRIORITY,
        "shards; rows and vectors overtake dense gradients",
        horizontal=True,
        baseline=False,
    ),
    "+vertical": Method(
        "all_to_all",
        _BY_PRIORITY,
        "and rows that no next batch needs come last (EmbRace)",
        horizontal=True,
        vertical=True,
        baseline=False,
    ),
    "+early": Method(
        "all_to_all",
        _BY_PRIORITY,
        "and vectors that the step does not change come first",
        horizontal=True,
        vertical=True,
        early=True,
        baseline=False,
    ),
    "auto": Method(
        "auto",
        _BY_PRIORITY,
        "for each table the cheapest of all",
        horizontal=True,
        baseline=False,
    ),
}
