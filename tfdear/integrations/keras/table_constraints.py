# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Constraints of sharded tables, applied row by row.

Keras assigns the constrained value of the whole table. Here a constraint is one more update: rows
get it when they are read. Of a table of which only touched rows change, it is part of their update,
and for all rows where averages have overwritten these.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.gradients import table_update
from tfdear.gradients.sharded_variable import ShardedVariable
from tfdear.gradients.sparse_rows import Gradient
from tfdear.integrations.keras.table_files import table_of

SEAMS = seams.Seams()


@SEAMS.wrap(_keras_private.APPLY)
def _constrain_by_rows(
    original: seams.Original,
    optimizer: keras.optimizers.Optimizer,
    grads: Iterable[Gradient | None],
    trainable_variables: Sequence[keras.Variable] | None = None,
) -> object:
    grads = list(grads)
    given = optimizer._trainable_variables if trainable_variables is None else trainable_variables
    variables = list(given)
    constrained = [
        (variable, table, variable.constraint)
        for gradient, variable in zip(grads, variables, strict=False)
        if gradient is not None
        and (table := table_of(variable)) is not None
        and variable.constraint is not None
    ]
    with _without_constraints(variable for variable, _, _ in constrained):
        for _, table, constraint in constrained:
            if table.placement.touched_only:
                table.row_constraint = constraint
        result = original(optimizer, grads, trainable_variables and variables)
    of_all_rows = [each for each in constrained if not each[1].placement.touched_only]
    _apply(of_all_rows)
    overwritten = [each for each in constrained if each[1].placement.touched_only]
    if overwritten and optimizer.use_ema and optimizer.ema_overwrite_frequency:
        is_overwritten = optimizer.iterations % optimizer.ema_overwrite_frequency == 0
        keras.ops.cond(is_overwritten, lambda: _apply(overwritten), lambda: None)
    return result


@contextlib.contextmanager
def _without_constraints(variables: Iterable[Any]) -> Iterator[None]:
    saved = [(variable, variable.constraint) for variable in variables]
    try:
        for variable, _ in saved:
            variable.constraint = None
        yield
    finally:
        for variable, constraint in saved:
            variable.constraint = constraint


def _apply(constrained: Iterable[tuple[Any, ShardedVariable, Any]]) -> None:
    for _, table, constraint in constrained:
        _apply_one(table, constraint)


def _apply_one(table: ShardedVariable, constraint: Any) -> None:
    def update(variable: ShardedVariable) -> None:
        variable.assign(constraint(variable.read_value()))

    try:
        table.strategy.extended.update(table, update)
    except table_update.NotByRowsError:
        raise ValueError(
            f"The constraint {type(constraint).__name__} cannot be applied to "
            f"{table.placement.label}, of which every rank holds a part: it is not element-wise, "
            "so that it cannot be applied row by row. Use one that changes every element by "
            "itself, such as keras.constraints.NonNeg, or keras.layers.Embedding."
        ) from None
