# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which optimizer updates a table's touched rows: one alone, if it accumulates gradients.

An update is for the rows that were touched since the last one, whosever that was.
"""

import gc
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.gradients.sharded_variable import ShardedVariable
from tfdear.gradients.sparse_rows import Gradient
from tfdear.integrations.keras.table_files import table_of

SEAMS = seams.Seams()


@SEAMS.wrap(_keras_private.APPLY)
def _take_tables(
    original: seams.Original,
    optimizer: keras.optimizers.Optimizer,
    grads: Iterable[Gradient | None],
    trainable_variables: Sequence[keras.Variable] | None = None,
) -> object:
    grads = list(grads)
    given = optimizer._trainable_variables if trainable_variables is None else trainable_variables
    variables = list(given)
    for gradient, variable in zip(grads, variables, strict=False):
        table = table_of(variable)
        if gradient is not None and table is not None and table.placement.touched_only:
            _take(optimizer, table)
    return original(optimizer, grads, trainable_variables and variables)


def _take(optimizer: keras.optimizers.Optimizer, table: ShardedVariable) -> None:
    if _is_in_the_way(_optimizer_of(table), optimizer):
        gc.collect()
        if _is_in_the_way(_optimizer_of(table), optimizer):
            raise ValueError(
                f"Two optimizers update {table.placement.label}, and one of them has "
                '`gradient_accumulation_steps`. With `updates="touched"` the update of one is for '
                "the rows whose gradients the other one accumulates. Use one optimizer for the "
                'table, or `updates="exact"`. An optimizer that is not used any more is no matter '
                "once it is deleted, or another one is given to `compile` in its place."
            )
    table.updated_by = weakref.ref(optimizer)


def _is_in_the_way(other: Any, optimizer: keras.optimizers.Optimizer) -> bool:
    if other is None or other is optimizer:
        return False
    return bool(other.gradient_accumulation_steps or optimizer.gradient_accumulation_steps)


def _optimizer_of(table: ShardedVariable) -> Any:
    return None if table.updated_by is None else table.updated_by()


@SEAMS.wrap(_keras_private.COMPILE)
def _release_tables(
    original: seams.Original, model: keras.Model, *args: Any, **kwargs: Any
) -> object:
    before = list(_parts(getattr(model, "optimizer", None)))
    for variable in model.variables if before else ():
        table = table_of(variable)
        if table is not None and any(_optimizer_of(table) is part for part in before):
            table.updated_by = None
    return original(model, *args, **kwargs)


def _parts(optimizer: Any) -> Iterable[Any]:
    """An optimizer, and those that it consists of."""
    if optimizer is None:
        return
    yield optimizer
    yield from _parts(getattr(optimizer, "inner_optimizer", None))
    for part in getattr(optimizer, "optimizers", ()):
        yield from _parts(part)
