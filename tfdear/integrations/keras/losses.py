# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Losses and their gradients; see [Note: One process is the reference]."""

from typing import Any

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear._private import tensorflow as _tf_private
from tfdear.integrations.keras import lookup
from tfdear.losses import loss_contract

SEAMS = seams.Seams()


@SEAMS.wrap(_keras_private.SCALE_LOSS)
def _scale_loss(original: seams.Original, value: tf.Tensor) -> tf.Tensor:
    # Keras scales a mean loss by 1 / replicas for the sum over replicas.
    losses = loss_contract.current_losses()
    if losses is not None:
        return losses.scale(value)
    # Outside of `run` gradients are averaged.
    return value if lookup.dear_strategy() else original(value)


@SEAMS.wrap(_keras_private.UNSCALE_LOSS)
def _unscale_loss(original: seams.Original, value: tf.Tensor) -> tf.Tensor:
    losses = loss_contract.current_losses()
    if losses is not None:
        return losses.unscale(value)
    return value if lookup.dear_strategy() else original(value)


@SEAMS.wrap(_keras_private.REDUCE_VALUES)
def _reduce_values(
    original: seams.Original,
    values: tf.Tensor,
    sample_weight: tf.Tensor | None = None,
    reduction: str | None = "sum_over_batch_size",
) -> tf.Tensor:
    losses = loss_contract.current_losses()
    loss = original(values, sample_weight, reduction)
    if losses is None:
        return loss
    if len(values.shape) == 0:
        losses.note_single_value()
    elif reduction == "sum":
        return losses.scale_sum(loss)
    elif reduction not in (None, "none"):
        return losses.weigh_part(loss, keras.ops.shape(values)[0])
    return loss


@SEAMS.wrap(_keras_private.AGGREGATE_ADDITIONAL_LOSS)
def _aggregate_additional_loss(
    original: seams.Original, model: keras.Model, loss: tf.Tensor
) -> tf.Tensor:
    losses = loss_contract.current_losses()
    if losses is None or len(loss.shape) == 0:
        if losses is not None and _adds_single_values(model):
            losses.note_single_value()
        return original(model, loss)
    # One value for each row, which Keras adds up.
    return losses.scale_sum(losses.unscale(original(model, loss)))


@SEAMS.wrap(_keras_private.UPDATE_MEAN)
def _update_mean(
    original: seams.Original,
    metric: keras.metrics.Mean,
    values: tf.types.experimental.TensorLike,
    sample_weight: tf.types.experimental.TensorLike | None = None,
) -> object:
    # A metric gets a loss that was averaged by hand as one value for all rows of the rank.
    losses = loss_contract.current_losses()
    one_value = sample_weight is None and keras.ops.ndim(values) == 0
    if losses is not None and one_value:
        sample_weight = tf.cast(losses.weight(), tf.float32)
    return original(metric, values, sample_weight)


def _adds_single_values(model: keras.Model) -> bool:
    # A regularizer's loss is a single value, too, but has nothing to do with rows.
    single = sum(len(loss.shape) == 0 for loss in model.losses)
    return single > sum(variable.regularizer is not None for variable in model.trainable_variables)


@SEAMS.wrap(_tf_private.COMPUTE_AVERAGE_LOSS)
def _compute_average_loss(original: seams.Original, *args: Any, **kwargs: Any) -> tf.Tensor:
    # With the size of the global batch it does not ask for the number of replicas.
    losses = loss_contract.current_losses()
    if losses is not None:
        losses.note_scaling()
    return original(*args, **kwargs)


@SEAMS.wrap(_tf_private.GRADIENT)
def _look_for_sums(
    original: seams.Original,
    tape: tf.GradientTape,
    target: object,
    sources: object,
    output_gradients: object = None,
    *args: Any,
    **kwargs: Any,
) -> object:
    gradients = original(tape, target, sources, output_gradients, *args, **kwargs)
    losses = loss_contract.current_losses()
    if losses is not None and output_gradients is None:
        losses.note_gradients(target, gradients)
    return gradients
