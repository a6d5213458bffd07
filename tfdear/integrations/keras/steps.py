# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The functions of steps, what they write to metrics, and which variables they may use.

A step writes a rank's own value of a metric, and results are those of all ranks; see [Note: Own
values].
"""

from typing import Any

import keras
import tensorflow as tf

from tfdear import losses
from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.gradients import own_value
from tfdear.gradients import variable as variable_module
from tfdear.integrations.keras import lookup
from tfdear.losses import loss_contract

SAMPLING = seams.Seams()
SEAMS = seams.Seams()


@SEAMS.wrap(_keras_private.METRIC_INIT)
def _take_results_of_sums(
    original: seams.Original, metric: keras.metrics.Metric, *args: Any, **kwargs: Any
) -> None:
    original(metric, *args, **kwargs)
    for kind in type(metric).__mro__:
        if issubclass(kind, keras.metrics.Metric) and callable(vars(kind).get("result")):
            seams.replace(kind, "result", _result_of_sums)


def _result_of_sums(original: seams.Original, *args: Any, **kwargs: Any) -> object:
    with own_value.reading_sums():
        return original(*args, **kwargs)


# Keras's methods that make the functions of a step, and the attributes that hold these.
_FUNCTIONS = {"make_train_function": "train_function", "make_test_function": "test_function"}


@SEAMS.wrap(_keras_private.MAKE_TRAIN_FUNCTION, _keras_private.MAKE_TEST_FUNCTION)
def _make_step(original: seams.Original, model: keras.Model, *args: Any, **kwargs: Any) -> object:
    result = original(model, *args, **kwargs)
    function = getattr(model, attribute := _FUNCTIONS[original.__name__])
    is_wrapped = isinstance(function, loss_contract.KerasStep)
    if lookup.dear_strategy_of(model) is not None and not is_wrapped:
        is_own = (
            type(model).train_step is not keras.Model.train_step
            or type(model).compute_loss is not keras.Model.compute_loss
        )
        setattr(model, attribute, loss_contract.KerasStep(function, is_own))
    return result


@SAMPLING.wrap(_keras_private.MAKE_TRAIN_FUNCTION)
def _draw_by_steps(
    original: seams.Original, model: keras.Model, *args: Any, **kwargs: Any
) -> object:
    # A training that goes on from a backup draws what it would have drawn.
    for loss in tf.nest.flatten(model.loss):
        if isinstance(loss, losses.SampledSoftmax):
            loss.follow(model.optimizer)
    return original(model, *args, **kwargs)


@SEAMS.wrap(
    _keras_private.MAKE_TRAIN_FUNCTION,
    _keras_private.MAKE_TEST_FUNCTION,
    _keras_private.MAKE_PREDICT_FUNCTION,
)
def _require_variables_of_the_scope(
    original: seams.Original, model: keras.Model, *args: Any, **kwargs: Any
) -> object:
    # A variable from outside the scope would be a rank's own: ranks would drift apart, and
    # callbacks that look at a metric would decide differently on each.
    if lookup.dear_strategy_of(model) is not None:
        optimizer = getattr(model, "optimizer", None)
        # The variables that training writes. Constants, such as what `Normalization.adapt` found,
        # may come from anywhere.
        variables = [*model.trainable_variables, *model.metrics_variables]
        variables += optimizer.variables if optimizer is not None else []
        for variable in variables:
            value = getattr(variable, "value", variable)
            if isinstance(value, tf.Variable) and not isinstance(
                value, variable_module.DearVariable
            ):
                raise ValueError(
                    f"The variable `{variable.path}` of model `{model.name}` was created "
                    "outside `strategy.scope()`, so it would have another value on every rank. "
                    "Create the model, its metrics, losses and optimizer inside the scope."
                )
    return original(model, *args, **kwargs)
