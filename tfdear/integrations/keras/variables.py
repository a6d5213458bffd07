# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Variables: compared over the ranks, watched without waiting, counters trusted.

They are compared after the callbacks ran, as some load weights.
"""

import weakref
from typing import TypeAlias

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear._private import tensorflow as _tf_private
from tfdear.gradients import consistency as consistency_module
from tfdear.gradients import variable as variable_module
from tfdear.integrations.keras import lookup

_Callbacks: TypeAlias = keras.callbacks.CallbackList

SEAMS = seams.Seams()

# Lists of callbacks whose `fit` is running, and the number of steps at the last comparison.
_fitting: weakref.WeakKeyDictionary[_Callbacks, int] = weakref.WeakKeyDictionary()


def _consistency_of(callbacks: _Callbacks) -> consistency_module.Consistency | None:
    strategy = lookup.dear_strategy_of(callbacks.model)
    return None if strategy is None else strategy.extended.consistency


@SEAMS.wrap(_keras_private.ON_TRAIN_BEGIN)
def _compare_at_start_of_fit(
    original: seams.Original, callbacks: _Callbacks, logs: object = None
) -> None:
    original(callbacks, logs)
    consistency = _consistency_of(callbacks)
    if consistency is not None:
        _fitting[callbacks] = 0
        consistency.check_model(callbacks.model)


@SEAMS.wrap(_keras_private.ON_TRAIN_BATCH_END)
def _compare_every_few_steps(
    original: seams.Original,
    callbacks: _Callbacks,
    batch: int,
    logs: object = None,
) -> None:
    original(callbacks, batch, logs)
    consistency = _consistency_of(callbacks)
    if consistency is not None and consistency.every:
        previous = _fitting.get(callbacks, 0)
        _fitting[callbacks] = batch + 1
        if (batch + 1) // consistency.every != previous // consistency.every:
            consistency.check_model(callbacks.model)


@SEAMS.wrap(_keras_private.ON_TRAIN_END)
def _end_of_fit(original: seams.Original, callbacks: _Callbacks, logs: object = None) -> None:
    _fitting.pop(callbacks, None)
    original(callbacks, logs)


@SEAMS.wrap(_keras_private.ON_TEST_BEGIN)
def _compare_at_start_of_evaluate(
    original: seams.Original, callbacks: _Callbacks, logs: object = None
) -> None:
    original(callbacks, logs)
    consistency = _consistency_of(callbacks)
    # The model that `fit` validates was compared when it started.
    if consistency is not None and callbacks not in _fitting:
        consistency.check_model(callbacks.model)


@SEAMS.wrap(_tf_private.WATCH_VARIABLE)
def _watch_without_waiting(
    original: seams.Original, graph: tf.Graph, variable: tf.Variable
) -> object:
    # A function that calls another one, as Keras's loop over batches calls the step, notes the
    # variables of the inner one, for which it asks for their handles. An await op for each of them
    # would make the whole call wait for all updates, and the forward pass would overlap nothing.
    with variable_module.raw_handles():
        return original(graph, variable)


@SEAMS.wrap(_keras_private.INITIALIZE_VARIABLE)
def _trust_counters(original: seams.Original, variable: keras.Variable, value: object) -> object:
    # The variables that Keras creates with aggregation "only_first_replica", such as the number of
    # iterations, get the same values on all ranks in every step: a collective for each would only
    # cost time. Those of a script get what it asked for.
    with variable_module.identical_writes():
        return original(variable, value)
