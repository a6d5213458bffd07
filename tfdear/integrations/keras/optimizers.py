# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Optimizers: reduction of gradients, loss scaling, accumulation."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.gradients import reducer, sparse_rows
from tfdear.gradients.sharded_variable import ShardedVariable
from tfdear.gradients.sparse_rows import Gradient
from tfdear.integrations.keras import lookup
from tfdear.losses import loss_contract

_Optimizer: TypeAlias = keras.optimizers.Optimizer
_Pair: TypeAlias = tuple[Gradient | None, tf.Variable]

SEAMS = seams.Seams()


@SEAMS.wrap(_keras_private.ALL_REDUCE_SUM_GRADIENTS)
def _all_reduce(
    original: seams.Original, optimizer: _Optimizer, grads_and_vars: Iterable[_Pair]
) -> list[_Pair]:
    losses = loss_contract.current_losses()
    if losses is not None:
        grads_and_vars = _by_rows(grads_and_vars)
        _complete_shapes(grads_and_vars)
        _warn_of_compression(optimizer, grads_and_vars)
        with losses.reducing_gradients(), reducer.for_optimizer(_momentum_of(optimizer)):
            return original(optimizer, grads_and_vars)
    pairs = original(optimizer, grads_and_vars)
    extended = lookup.extended_of(variable for _, variable in pairs)
    if extended is None:
        return pairs
    given = [gradient for gradient, _ in pairs if gradient is not None]
    means = iter(loss_contract.average_outside_of_run(extended, given))
    return [
        (gradient if gradient is None else next(means), variable) for gradient, variable in pairs
    ]


def _by_rows(grads_and_vars: Iterable[_Pair]) -> list[_Pair]:
    # What travels of a table's gradient goes to the ranks that hold the rows, also if it is dense:
    # all ranks would get the whole sum otherwise, of which they need their part.
    pairs = []
    for gradient, variable in grads_and_vars:
        if isinstance(variable, ShardedVariable) and isinstance(gradient, tf.Tensor):
            placement = variable.placement
            if placement.partition.ranks > 1 or gradient.shape[0] != placement.partition.rows:
                gradient = sparse_rows.all_rows(gradient, placement.shape)
        pairs.append((gradient, variable))
    return pairs


def _complete_shapes(grads_and_vars: Sequence[_Pair]) -> None:
    # The gradient of a kernel that is applied to more than two dimensions has no known shape in
    # TensorFlow. Tensors of unknown size travel alone, and are not compressed.
    for gradient, variable in grads_and_vars:
        if isinstance(gradient, tf.Tensor) and not gradient.shape.is_fully_defined():
            gradient.set_shape(variable.shape)


def _momentum_of(optimizer: _Optimizer) -> float:
    """The factor `u` of an optimizer that computes `velocity = u * velocity + sum`, else 0."""
    return float(optimizer.momentum) if _is_plain_sgd(optimizer) and optimizer.momentum < 1 else 0.0


def _is_plain_sgd(optimizer: _Optimizer) -> bool:
    # A subclass may do something else.
    return type(optimizer) is keras.optimizers.SGD and not optimizer.nesterov


def _warn_of_compression(optimizer: _Optimizer, grads_and_vars: Sequence[_Pair]) -> None:
    extended = lookup.extended_of(variable for _, variable in grads_and_vars)
    if extended is None:
        return
    if extended._job.compresses and tf.executing_eagerly():
        extended.warn_once(
            "a step runs eagerly, in which no sum is deferred: its gradients are not compressed. "
            "Compile the model without `run_eagerly=True`, or put the step into a `tf.function`."
        )
    if not extended.corrects_momentum or _is_plain_sgd(optimizer):
        return
    extended.warn_once(
        f"the gradients of {type(optimizer).__name__} are compressed without momentum correction, "
        "which is for keras.optimizers.SGD without `nesterov`. Other optimizers learn worse from "
        "gradients that come late: use that one, or compare with a training without compression."
    )


@SEAMS.wrap(_keras_private.CHECK_FINITE)
def _agree_on_overflow(
    original: seams.Original, optimizer: _Optimizer, grads: Sequence[Gradient | None]
) -> tf.Tensor:
    # The loss scale optimizer looks for overflows in this replica's gradients, before the
    # reduction. With an overflow on one rank only, ranks would take different branches, one of
    # which holds the reduction.
    finite = original(optimizer, grads)
    if (losses := loss_contract.current_losses()) is not None:
        losses.row_sums.note_applied(grads)  # Before the division by the scale makes new tensors.
    strategy = lookup.dear_strategy()
    context = tf.distribute.get_replica_context()
    active = None
    if strategy is not None and context is not None:
        extended, active = strategy.extended, context.examples.present
    elif strategy is None:  # Outside of `run` gradients are averaged.
        extended = lookup.extended_of(variable.value for variable in optimizer.variables)
    else:
        extended = None
    if extended is None:
        return finite
    overflows = tf.cast(tf.logical_not(finite), tf.int32)
    total = extended.reducer.all_reduce([overflows], name="overflow flag", active=active)
    return total[0] < 1


@SEAMS.wrap(_keras_private.HANDLE_FINITE_GRADS, _keras_private.HANDLE_NON_FINITE_GRADS)
def _change_loss_scale(
    original: seams.Original, optimizer: _Optimizer, *args: Any, **kwargs: Any
) -> object:
    # The scale is the same on all ranks, and must not be averaged.
    context = tf.distribute.get_replica_context()
    if lookup.dear_strategy() is None or context is None:
        return original(optimizer, *args, **kwargs)
    with context.updating():
        return original(optimizer, *args, **kwargs)


@SEAMS.wrap(_keras_private.APPLY)
def _accumulate_all_gradients(
    original: seams.Original,
    optimizer: _Optimizer,
    grads: Iterable[Gradient | None],
    trainable_variables: Sequence[keras.Variable] | None = None,
) -> object:
    # With gradient accumulation the reduction sums gradients of several batches: a rank without
    # examples in the last one still has those of the others. So gradients of a batch without
    # examples are set to zero before they are accumulated.
    losses = loss_contract.current_losses()
    if losses is None:
        return original(optimizer, grads, trainable_variables)
    grads = list(grads)
    losses.row_sums.note_applied(grads)
    if not optimizer.gradient_accumulation_steps:
        return original(optimizer, grads, trainable_variables)
    examples = tf.distribute.get_replica_context().examples
    weight = losses.weight_before_reduction()
    grads = [
        gradient if gradient is None else examples.gate(_scaled(gradient, weight))
        for gradient in grads
    ]
    with examples.ignored(), losses.weighted_gradients():
        return original(optimizer, grads, trainable_variables)


@SEAMS.wrap(_keras_private.OVERWRITE_WITH_GRADIENTS)
def _overwrite_with_largest(
    original: seams.Original,
    optimizer: _Optimizer,
    grads: Sequence[Gradient | None],
    trainable_variables: Sequence[keras.Variable],
) -> object:
    # What Keras writes over such variables are no gradients: histories of the largest values that
    # a layer in float8 has had, and scales. Of all rows they are the largest of the ranks'.
    if loss_contract.current_losses() is not None:
        gather = tf.distribute.get_replica_context().all_gather
        grads = [
            _largest(gather, gradient)
            if gradient is not None and getattr(variable, "overwrite_with_gradient", False)
            else gradient
            for gradient, variable in zip(grads, trainable_variables, strict=True)
        ]
    return original(optimizer, grads, trainable_variables)


def _largest(gather: Callable[..., tf.Tensor], value: tf.Tensor) -> tf.Tensor:
    # None of them is negative; a rank without rows has nothing to say.
    of_ranks = gather(value[tf.newaxis], axis=0)
    return tf.reduce_max(tf.concat([of_ranks, tf.zeros_like(value)[tf.newaxis]], 0), 0)


def _scaled(gradient: Gradient, weight: tf.Tensor | None) -> Gradient:
    if weight is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = _scaled(gradient.values, weight)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(weight, gradient.dtype)
