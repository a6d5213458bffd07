# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Finds the distributed `DearStrategy` of a step or of a variable."""

import tensorflow as tf

from tfdear.gradients import variable as variable_module


def dear_strategy(
    strategy: tf.distribute.Strategy | None = None,
) -> tf.distribute.Strategy | None:
    """The given or the current strategy if it is a distributed `DearStrategy`, else None."""
    strategy = strategy or tf.distribute.get_strategy()
    extended = getattr(strategy, "extended", None)
    return strategy if getattr(extended, "is_distributed_dear", False) else None


def extended_of(variable: object) -> tf.distribute.StrategyExtended | None:
    """The extended strategy of a variable of a distributed `DearStrategy`, else None."""
    if not isinstance(variable, variable_module.DearVariable):
        return None
    return variable.strategy.extended
