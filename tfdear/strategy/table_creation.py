# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Creates tables and their slots in parts, with one process too."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.engine import engine as engine_module
from tfdear.gradients import initial_part, variable_names, whole_table
from tfdear.gradients import placement as placement_module
from tfdear.gradients import variable as variable_module
from tfdear.gradients.sharded_variable import ShardedVariable

_KEPT = ("trainable", "name", "dtype", "synchronization", "aggregation")


def placement_of(given: Mapping[str, Any], owner: object) -> placement_module.Placement | None:
    """How a variable is to be placed; None: it is whole.

    `given` are the arguments of `tf.Variable`; slots of a table that have its shape are placed as
    the table is.
    """
    placement = placement_module.current() or _placement_in(given.get("initial_value"))
    if placement is None and isinstance(owner, ShardedVariable):
        placement = owner.placement
    return placement


def _placement_in(initial_value: object) -> placement_module.Placement | None:
    # Keras creates the variables of a model that is built in `fit` when it has called all layers.
    # Then its initial value is a function that holds on to the initializer.
    for cell in getattr(initial_value, "__closure__", None) or ():
        if isinstance(cell.cell_contents, initial_part.PartInitializer):
            return cell.cell_contents.placement
    return None


def create(
    engine: engine_module.Engine,
    given: Mapping[str, Any],
    owner: object,
    placement: placement_module.Placement,
    strategy: tf.distribute.Strategy,
) -> tf.Variable | None:
    """Creates a table or a slot; None if it does not have the table's shape."""
    initial_value = given.get("initial_value")
    with tf.init_scope():
        if isinstance(initial_value, _tf_private.trackable.CheckpointInitialValueCallable):
            initial_value = initial_value(shape=placement.shape, dtype=given.get("dtype"))
        elif callable(initial_value):
            with placement_module.of_new_variables(placement):
                initial_value = initial_value()
        if isinstance(initial_value, _tf_private.trackable.CheckpointInitialValue):
            initial_value = initial_value.wrapped_value
        value = tf.convert_to_tensor(initial_value, given.get("dtype"))
        if value.shape == placement.shape:
            value = whole_table.part_of(placement, value)
        elif value.shape != placement.shard_shape:
            return None
        of_table = owner if isinstance(owner, ShardedVariable) else None
        if of_table is not None:
            of_table.prepare_for_slot()
        table = ShardedVariable(
            value,
            placement=placement,
            creation_path=variable_names.path(given.get("name"), given.get("initial_value")),
            number=engine.create_variable(),
            owner=of_table,
            reconciliation=variable_module.Reconciliation.NONE,
            distribute_strategy=strategy,
            **{name: given[name] for name in _KEPT if given.get(name) is not None},
        )
        if table.owner is None and strategy.extended.is_distributed_dear:
            strategy.extended.reducer.travel.note(table)
        if placement.partition.ranks > 1:
            table.shard_number = strategy.extended.table_service.add(table)
        return table
