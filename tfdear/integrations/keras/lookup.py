# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Finds the distributed `DearStrategy` of a step, a model or variables."""

from collections.abc import Iterable

import tensorflow as tf

from tfdear.gradients import variable as variable_module


def dear_strategy(
    strategy: tf.distribute.Strategy | None = None,
) -> tf.distribute.Strategy | None:
    """The given or the current strategy if it is a distributed `DearStrategy`, else None."""
    strategy = strategy or tf.distribute.get_strategy()
    extended = getattr(strategy, "extended", None)
    return strategy if getattr(extended, "is_distributed_dear", False) else None


def dear_strategy_of(model: object) -> tf.distribute.Strategy | None:
    """The strategy of a model if it is a distributed `DearStrategy`, else None."""
    strategy = getattr(model, "distribute_strategy", None)
    return None if strategy is None else dear_strategy(strategy)


def extended_of(variables: Iterable[object]) -> tf.distribute.StrategyExtended | None:
    """The extended strategy of the first variable of a distributed `DearStrategy`, else None."""
    for variable in variables:
        if isinstance(variable, variable_module.DearVariable):
            return variable.strategy.extended
    return None
