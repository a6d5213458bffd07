# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where the table of a layer is to be, by what its user chose and the current strategy."""

import dataclasses

import tensorflow as tf

from tfdear.base import names
from tfdear.gradients.placement import Placement
from tfdear.planning import partition as partition_module


@dataclasses.dataclass(frozen=True)
class Choices:
    """What a user may choose of a table; see `ShardedEmbedding`."""

    partition: str = "auto"
    exchange: str = "auto"
    updates: str = "exact"

    def __post_init__(self) -> None:
        check_choice("partition", self.partition, ("auto", *partition_module.KINDS))
        check_choice("exchange", self.exchange, names.EMBEDDINGS)
        check_choice("updates", self.updates, ("exact", "touched"))


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raises a ValueError if an argument has none of the values it may have."""
    if value not in choices:
        allowed = ", ".join(map(repr, choices))
        raise ValueError(f"`{name}` must be one of {allowed}. Received: {name}={value!r}")


def is_in_scope() -> bool:
    """Whether the current strategy is a DearStrategy."""
    return getattr(tf.distribute.get_strategy().extended, "is_dear", False)


def place(
    label: str, shape: tuple[int, int], choices: Choices, dtype: str = "float32"
) -> Placement | None:
    """How a table is divided; None: the current strategy is no DearStrategy.

    Args:
        label: What has the table, for messages.
        shape: Rows and columns of the whole.
        choices: See there.
        dtype: Type of its values.

    Raises:
        ValueError: Tables have no values of that type.
    """
    if not is_in_scope():
        return None
    check_type(label, dtype)
    extended = tf.distribute.get_strategy().extended
    rows, columns = shape
    exchange = extended.embeddings if choices.exchange == "auto" else choices.exchange
    choice = extended.reducer.travel.choice if extended.is_distributed_dear else None
    if exchange == "auto" and (choice is None or choice.divides(rows, columns)):
        exchange = "all_to_all"
    ranks = extended.world_size if exchange == "all_to_all" else 1
    rank = 0 if ranks == 1 else extended.rank
    partition = partition_module.choose(choices.partition, rows, columns, ranks)
    label = f"{label} (table of {rows} x {columns})"
    return Placement(partition, rank, label, choices.updates == "touched", exchange)


def check_type(label: str, dtype: str) -> None:
    """Raises a ValueError if a table with values of a type cannot be divided in this scope."""
    if is_in_scope() and dtype != "float32":
        raise ValueError(
            f"The table of {label} has values of type {dtype}, and sharded tables are float32. Use "
            'dtype="float32", a policy such as "mixed_bfloat16" for vectors of fewer bits, or '
            "keras.layers.Embedding."
        )
