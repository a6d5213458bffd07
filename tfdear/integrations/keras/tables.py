# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Optimizers' slots and averages of tables that the ranks hold in parts."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.gradients import initial_part, table_update
from tfdear.gradients.sharded_variable import ShardedVariable
from tfdear.integrations.keras import table_accumulation
from tfdear.integrations.keras.table_files import table_of

SEAMS = seams.Seams()


@SEAMS.wrap(_keras_private.ADD_VARIABLE_FROM_REFERENCE)
def _make_part(
    original: seams.Original,
    optimizer: keras.optimizers.Optimizer,
    reference_variable: Any,
    name: str | None = None,
    initializer: Any = "zeros",
) -> object:
    # A slot has the whole table's shape, of which no rank has the memory.
    table = table_of(reference_variable)
    if table is not None:
        initializer = initial_part.PartInitializer(
            keras.initializers.get(initializer),
            table.placement,
            table.strategy.extended.broadcast_value,
        )
    slot = original(optimizer, reference_variable, name=name, initializer=initializer)
    part = table_of(slot)
    if table is not None and part is not None and name == table_accumulation.NAME:
        return table_accumulation.TableAccumulator(part)
    return slot


@SEAMS.wrap(_keras_private.APPLY_WEIGHT_DECAY)
def _decay(
    original: seams.Original, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]
) -> None:
    with table_update.decaying():
        original(optimizer, variables)


@SEAMS.wrap(_keras_private.UPDATE_MOVING_AVERAGES)
def _average_by_rows(
    original: seams.Original, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]
) -> None:
    if not optimizer.use_ema:
        return
    tables = [table_of(variable) for variable in variables]
    if not any(table is not None for table in tables):
        original(optimizer, variables)
        return
    # The original pairs variables with averages by their places.
    averages = optimizer._model_variables_moving_average
    momentum = keras.ops.cast(keras.ops.not_equal(optimizer.iterations, 0), "float32")
    momentum = tf.convert_to_tensor(momentum * optimizer.ema_momentum)
    for table, variable, average in zip(tables, variables, averages, strict=True):
        if average is None:
            continue
        if table is None:
            average.assign(momentum * average + (1 - momentum) * variable)
        else:
            table.strategy.extended.update(table_of(average), _average(table, momentum))


def _average(table: ShardedVariable, momentum: tf.Tensor) -> Any:
    def update(average: ShardedVariable) -> None:
        average.assign(momentum * average.read_value() + (1 - momentum) * table.read_value())

    return update


@SEAMS.wrap(_keras_private.OVERWRITE_WITH_AVERAGES)
def _overwrite_by_variables(
    original: seams.Original, optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]
) -> None:
    if not any(table_of(variable) is not None for variable in optimizer._trainable_variables):
        original(optimizer, variables)
        return
    # The original pairs variables with averages by their places, and layers may have been frozen
    # since the optimizer was built.
    for variable in variables:
        average = optimizer._model_variables_moving_average[optimizer._get_variable_index(variable)]
        if average is not None:
            value = variable.value if isinstance(variable, keras.Variable) else variable
            extended = optimizer._distribution_strategy.extended
            extended.update(value, lambda a, b: a.assign(b), args=(average,))
