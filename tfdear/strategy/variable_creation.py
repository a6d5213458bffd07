# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Creates the variables of a strategy, with the same initial values on all ranks."""

import functools
import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.engine import engine as engine_module
from tfdear.gradients import collectives as collectives_module
from tfdear.gradients import row_tables, variable_names
from tfdear.gradients import variable as variable_module
from tfdear.gradients.row_variable import RowVariable
from tfdear.strategy import step_seeds

_Reconciliation = variable_module.Reconciliation


class VariableCreator:
    """Creates the variables of one strategy, and knows those that are still in use.

    The states of seed generators differ from rank 0's by `seed_offset` strides; None: not at all.
    """

    def __init__(
        self,
        engine: engine_module.Engine,
        collectives: collectives_module.Collectives,
        seed_offset: int | None,
    ):
        self._engine = engine
        self._collectives = collectives
        self._seed_offset = seed_offset
        self._variables: weakref.WeakValueDictionary[int, variable_module.DearVariable] = (
            weakref.WeakValueDictionary()
        )

    def variables(self) -> list[variable_module.DearVariable]:
        """The variables that are still in use, in the order of creation; the same on all ranks."""
        # Those of former models are in circles, which Python finds at another time on each rank.
        gc.collect()
        return [variable for _, variable in sorted(self._variables.items())]

    def create(
        self, given: Mapping[str, Any], owner: object, strategy: tf.distribute.Strategy
    ) -> variable_module.DearVariable:
        """Creates a variable, a slot of `owner`, as the arguments of `tf.Variable` ask for it."""
        owner = owner if isinstance(owner, variable_module.DearVariable) else None
        kept = (
            "trainable",
            "name",
            "dtype",
            "shape",
            "synchronization",
            "aggregation",
            "validate_shape",
            "constraint",
            "caching_device",
            "experimental_enable_variable_lifting",
        )
        arguments = {name: given[name] for name in kept if given.get(name) is not None}
        path = variable_names.path(given.get("name"), given.get("initial_value"))
        initial_value = self._initial_value(
            given.get("initial_value"), given.get("dtype"), path, owner
        )
        number = self._engine.create_variable()
        create: Callable[..., variable_module.DearVariable] = variable_module.DearVariable
        placement = row_tables.placement_of(given, initial_value, owner, path)
        if placement is not None:
            create = functools.partial(RowVariable, placement=placement)
        variable = create(
            initial_value,
            creation_path=path,
            number=number,
            owner=owner,
            # Updates write the same into an optimizer's slots on all ranks.
            reconciliation=(
                _Reconciliation.NONE
                if owner is not None or _is_state_of_rows(path)
                else _reconciliation(arguments, initial_value)
            ),
            is_drawn_by_rank=self._seed_offset is not None and "seed_generator_state" in path,
            distribute_strategy=strategy,
            **arguments,
        )
        self._variables[number] = variable
        return variable

    def _initial_value(
        self,
        initial_value: Any,
        dtype: tf.DType | None,
        path: str,
        owner: variable_module.DearVariable | None,
    ) -> Any:
        """Rank 0's initial value, as ranks may draw different random numbers."""
        if isinstance(initial_value, _tf_private.trackable.CheckpointInitialValueCallable):
            return initial_value  # Every rank reads the same checkpoint.
        with tf.init_scope():
            value = initial_value() if callable(initial_value) else initial_value
            if value is None or isinstance(value, _tf_private.trackable.CheckpointInitialValue):
                return value
            value = tf.convert_to_tensor(value, dtype)
            if value.dtype in (tf.string, tf.variant, tf.resource):
                return value
            # Ranks that create variables in different orders must not get each other's values. A
            # slot's name holds the path of its owner, which includes the name of the model: that
            # may differ between ranks.
            label = "" if owner is not None else variable_names.without_numbers(path)
            value = self._collectives.broadcast(value, name=label)
            if "seed_generator_state" in path and self._seed_offset is not None:
                # Ranks that started from the same seed would all draw the same dropout masks.
                stride = tf.constant([step_seeds.STRIDE * self._seed_offset, 0], tf.int64)
                value = tf.cast(tf.cast(value, tf.int64) + stride, value.dtype)
            return value


def _is_state_of_rows(path: str) -> bool:
    # A stateful recurrent layer's, which it keeps for every row of this rank's batches.
    return path.rpartition("/")[2].split(":")[0].startswith("rnn_state")


def _reconciliation(arguments: Mapping[str, Any], initial_value: object) -> _Reconciliation:
    synchronization = arguments.get("synchronization")
    aggregation = arguments.get("aggregation", tf.VariableAggregation.NONE)
    if aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA:
        identical = variable_module.are_writes_identical()
        return _Reconciliation.NONE if identical else _Reconciliation.FIRST
    if synchronization == tf.VariableSynchronization.ON_READ:
        mean = aggregation == tf.VariableAggregation.MEAN
        return _Reconciliation.MEAN if mean else _Reconciliation.SUM
    if aggregation == tf.VariableAggregation.SUM:
        return _Reconciliation.SUM_OF_WRITES
    dtype = arguments.get("dtype") or getattr(initial_value, "dtype", tf.float32)
    # Of trainable ones only where it is said: a step's own writes into weights cost nothing else.
    averaged = aggregation == tf.VariableAggregation.MEAN or (
        aggregation == tf.VariableAggregation.NONE and arguments.get("trainable") is False
    )
    if averaged and tf.as_dtype(dtype).is_floating:
        return _Reconciliation.MEAN
    return _Reconciliation.NONE
