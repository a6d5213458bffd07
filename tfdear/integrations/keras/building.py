# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Models are built from a specification, and their metrics and optimizers created in the scope.

Under a strategy Keras builds a model from a first batch that it then discards. That runs the input
pipeline once more and advances the state of every shuffle, so that the epochs differ from those of
a run without a strategy; and it fails for a model without `call`. Shapes and types are all that
building needs, with one process too.
"""

from typing import Any

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.integrations.keras import lookup

BUILDING = seams.Seams()
SEAMS = seams.Seams()


@BUILDING.wrap(_keras_private.MAYBE_SYMBOLIC_BUILD)
def _build_from_specification(
    original: seams.Original, model: keras.Model, iterator: Any = None, data_batch: object = None
) -> object:
    strategy = model._distribute_strategy
    if not getattr(getattr(strategy, "extended", None), "is_dear", False):
        return original(model, iterator=iterator, data_batch=data_batch)
    made_by = getattr(model.optimizer, "_distribution_strategy", strategy)
    if made_by is not strategy and not strategy.extended.is_distributed_dear:
        # Compiled with an optimizer from outside of the scope, which works only without a strategy.
        # One process does not need it.
        model._distribute_strategy = None
        return None
    if type(model).call is keras.Model.call:
        # A model that only has a `train_step`, such as a GAN: its parts are built already, and its
        # optimizers create their variables when the step is traced, as without a strategy.
        return None
    if iterator is None:
        return original(model, data_batch=data_batch)
    specification = iterator._distributed_dataset.element_spec
    flat = tf.nest.flatten(specification)
    if not all(
        isinstance(spec, tf.TensorSpec) and spec.shape.rank and spec.shape[1:].is_fully_defined()
        for spec in flat
    ):
        return original(model, iterator=iterator, data_batch=data_batch)
    batch = [tf.TensorSpec([spec.shape[0] or 1, *spec.shape[1:]], spec.dtype) for spec in flat]
    return original(model, data_batch=tf.nest.pack_sequence_as(specification, batch))


@SEAMS.wrap(_keras_private.COMPILE)
def _compile_in_scope(
    original: seams.Original, model: keras.Model, *args: Any, **kwargs: Any
) -> object:
    # A model created in the scope belongs to its strategy; so do the metrics and the optimizer that
    # `compile` creates, wherever it is called.
    strategy = lookup.dear_strategy(getattr(model, "_distribute_strategy", None))
    if strategy is None or tf.distribute.in_cross_replica_context():
        return original(model, *args, **kwargs)
    with strategy.scope():
        return original(model, *args, **kwargs)
