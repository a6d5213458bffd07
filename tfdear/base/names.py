# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The words that engine, plans, statistics and options share. In Python they are only written here.

The C++ library has its own: a number that passes between the two means the same on both sides,
because the tables are compared when the library is loaded. Standard library only.
"""

import dataclasses
import enum
import itertools


class Lane(enum.IntEnum):
    """A process group with an order of collectives of its own."""

    GRADIENTS = 0
    CONTROL = 1
    INTRA_NODE = 2
    INTER_NODE = 3
    # The two levels that gradients can be summed in.
    GRADIENTS_INTRA = 4
    GRADIENTS_INTER = 5
    # Ids and vectors of sharded tables, and rows of their gradients: those that the next step needs
    # and the others.
    EMBEDDINGS = 6
    EMBEDDING_ROWS = 7
    DELAYED_ROWS = 8
    # What scripts exchange, and tables that are read whole.
    EXCHANGES = 9
    # Whether any rank has another batch of data that each has alone.
    LENGTHS = 10


class Transport(enum.IntEnum):
    """What carries the messages of a process group."""

    GLOO = 0
    SHARED_MEMORY = 1
    TCP = 2


class Operation(enum.IntEnum):
    """What a step of a plan does with its bucket."""

    REDUCE_SCATTER = 0
    ALL_GATHER = 1
    ALL_REDUCE = 2
    REDUCE = 3
    BROADCAST = 4


class Group(enum.IntEnum):
    """Among whom: all, the ranks of the node, or those in the same place on all nodes."""

    WORLD = 0
    INTRA = 1
    INTER = 2


class WireFormat(enum.IntEnum):
    """In which form: all elements, rows and indices of a sparse tensor, or what ranks select."""

    DENSE = 0
    ROWS = 1
    SELECTED = 2


@dataclasses.dataclass(frozen=True)
class StepKind:
    """A kind of step of a plan."""

    name: str  # What events, statistics and plans for users call it.
    operation: Operation
    group: Group = Group.WORLD
    wire_format: WireFormat = WireFormat.DENSE


# In the order of the engine's numbers. Not every combination exists.
STEP_KINDS = (
    StepKind("reduce_scatter", Operation.REDUCE_SCATTER),
    StepKind("all_gather", Operation.ALL_GATHER),
    StepKind("all_reduce", Operation.ALL_REDUCE),
    StepKind("sparse_gather", Operation.ALL_GATHER, wire_format=WireFormat.ROWS),
    StepKind("reduce", Operation.REDUCE),
    StepKind("broadcast", Operation.BROADCAST),
    StepKind("intra_reduce_scatter", Operation.REDUCE_SCATTER, Group.INTRA),
    StepKind("inter_reduce_scatter", Operation.REDUCE_SCATTER, Group.INTER),
    StepKind("inter_all_gather", Operation.ALL_GATHER, Group.INTER),
    StepKind("intra_all_gather", Operation.ALL_GATHER, Group.INTRA),
    StepKind("sparse_exchange", Operation.ALL_REDUCE, Group.INTER, WireFormat.SELECTED),
    StepKind("sparse_all_gather", Operation.ALL_REDUCE, Group.WORLD, WireFormat.SELECTED),
)

# Names whose places are the engine's numbers.
DATA_TYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
EXCHANGES = ("all_gather", "reduce")
VALUE_FORMATS = ("float32", "bfloat16")
STATUS_CODES = (
    "ok",
    "invalid_argument",
    "deadline_exceeded",
    "unavailable",
    "aborted",
    "internal",
    "cancelled",
    "resource_exhausted",
)
# What ranks exchange for sharded tables, and when they split ids by what a step needs.
TABLE_EXCHANGES = ("embedding_ids", "embedding_vectors", "embedding_prior", "embedding_delayed")
TABLE_SPLIT = "embedding_split"
# What caches of examples do, in the order in which it happens to an example.
DATA_EVENTS = ("data_read", "data_prepare", "data_fetch", "data_serve", "data_wait")
# A step of a plan is an event of its own kind.
EVENT_KINDS = (
    *("contribute", "collective", "update", "await", "read", "step", "norms"),
    *("selection", "forward"),
    *(*TABLE_EXCHANGES, "row_update", TABLE_SPLIT, "wait"),
    *DATA_EVENTS,
    *(kind.name for kind in STEP_KINDS),
)

# The kinds of steps that an all-reduce is divided into, in their order.
HALVES = ("reduce_scatter", "all_gather")

# Of gradients summed in two levels.
COLLECTIVES_IN_LEVELS = ("hierarchical", "torus2d")
COLLECTIVES = ("ring", "tree", *COLLECTIVES_IN_LEVELS)
# Orders of collectives; "dear_barrier" is `barrier=True` beside `schedule="dear"`.
SCHEDULES_IN_HALVES = ("dear", "dear_barrier")
SCHEDULES = (*SCHEDULES_IN_HALVES, "wfbp", "sequential", "bytescheduler")
BACKENDS = ("auto", "tcp", "gloo")
WEIGHTINGS = ("examples", "replica")
# How tables of embeddings are exchanged, and the order in which their parts travel.
EMBEDDINGS = ("auto", "all_to_all", "all_gather", "all_reduce")
EMBEDDING_SCHEDULES = ("2d", "horizontal", "none")


def data_type(name: str) -> int:
    """The engine's number of a data type."""
    return DATA_TYPES.index(name)


def step_kind(
    operation: Operation, group: Group = Group.WORLD, wire_format: WireFormat = WireFormat.DENSE
) -> StepKind:
    """The kind of a step that does this, among these, in this form."""
    wanted = (operation, group, wire_format)
    return next(k for k in STEP_KINDS if (k.operation, k.group, k.wire_format) == wanted)


def _members(enumeration: type[enum.IntEnum]) -> tuple[str, ...]:
    return tuple(member.name.lower() for member in enumeration)


def tables() -> dict[str, tuple[str, ...]]:
    """What the library must have too: by the word for it, the names in the order of the numbers."""
    step_kinds = (
        f"{kind.name}={kind.operation.name}/{kind.group.name}/{kind.wire_format.name}".lower()
        for kind in STEP_KINDS
    )
    return {
        "lane": _members(Lane),
        "transport": _members(Transport),
        "operation": _members(Operation),
        "group": _members(Group),
        "wire_format": _members(WireFormat),
        "step_kind": tuple(step_kinds),
        "data_type": DATA_TYPES,
        "exchange": EXCHANGES,
        "value_format": VALUE_FORMATS,
        "status_code": STATUS_CODES,
        "event_kind": EVENT_KINDS,
    }


def difference(library: str) -> str | None:
    """The first name that the library numbers in another way, in words; None if there is none.

    `library` is what its `tfdear_names` returns: a line for each table, its word first.
    """
    theirs = {word: tuple(names) for word, *names in map(str.split, library.splitlines())}
    ours = tables()
    for word in dict.fromkeys((*ours, *theirs)):
        pairs = itertools.zip_longest(ours.get(word, ()), theirs.get(word, ()))
        for number, (own, other) in enumerate(pairs):
            if own != other:
                return f"{word} {number} is {other!r} in the library and {own!r} in Python"
    return None
