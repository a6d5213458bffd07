# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Clips gradients of embeddings as dense ones, without making them dense.

A word that occurs several times has several rows in a sparse gradient. Keras clips each of them by
itself, and has the wrong norm: the dense gradient has their sum.

Of a sharded table that accumulates gradients no rank has what it accumulated, only the holders of
its rows have, summed over the ranks. So an optimizer with such a table clips sums over the ranks,
of all its variables: what one process clips. Others clip what a rank has, as Keras does.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.gradients import sparse_rows, table_update
from tfdear.gradients.sharded_variable import ShardedVariable
from tfdear.gradients.sparse_rows import Gradient
from tfdear.integrations.keras import table_accumulation

SEAMS = seams.Seams()

# Whether what is clipped are sums over the ranks.
_are_sums = contextvars.ContextVar("are_sums", default=False)


@contextlib.contextmanager
def _clipping_sums() -> Iterator[None]:
    token = _are_sums.set(True)
    try:
        yield
    finally:
        _are_sums.reset(token)


@SEAMS.wrap(_keras_private.CLIP_GRADIENTS)
def _clip_sums_of_rows(
    original: seams.Original,
    optimizer: keras.optimizers.Optimizer,
    grads: Sequence[Gradient | None],
) -> list[Gradient | None]:
    strategy = optimizer._distribution_strategy
    if not _clips(optimizer) or not getattr(strategy.extended, "is_dear", False):
        return original(optimizer, grads)
    if table_accumulation.has_tables(optimizer) and not _are_sums.get():
        return list(grads)  # When they are sums.
    summed = [
        sparse_rows.sum_duplicates(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient
        for gradient in grads
    ]
    # Rows that are not there are zero: neither norms nor clipped values know the difference.
    dense = [each.values if isinstance(each, tf.IndexedSlices) else each for each in summed]
    return [
        tf.IndexedSlices(clipped, each.indices, each.dense_shape)
        if isinstance(each, tf.IndexedSlices)
        else clipped
        for clipped, each in zip(original(optimizer, dense), summed, strict=True)
    ]


def _clips(optimizer: keras.optimizers.Optimizer) -> bool:
    return bool(optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue)


@SEAMS.wrap(_keras_private.BACKEND_UPDATE_STEP)
def _clip_sums_over_ranks(
    original: seams.Original,
    optimizer: keras.optimizers.Optimizer,
    grads: Sequence[Gradient],
    trainable_variables: Sequence[keras.Variable],
    learning_rate: object,
) -> None:
    if not _clips(optimizer) or not table_accumulation.has_tables(optimizer):
        original(optimizer, grads, trainable_variables, learning_rate)
        return
    variables = [
        variable.value if isinstance(variable, keras.Variable) else variable
        for variable in trainable_variables
    ]
    pairs = optimizer._all_reduce_sum_gradients(list(zip(grads, variables, strict=True)))
    optimizer._distributed_tf_update_step(
        optimizer._distribution_strategy, _clip(optimizer, pairs), learning_rate
    )


def _clip(
    optimizer: keras.optimizers.Optimizer, pairs: Sequence[tuple[Gradient, tf.Variable]]
) -> list[tuple[Gradient, tf.Variable]]:
    # The mean of a table's gradients, of which every rank holds a part, is made in its update.
    # What Keras clips in its place is its norm, a number: that is scaled as the elements are.
    norms = not optimizer.clipvalue
    stand_ins = [
        _stand_in(variable, gradient, norms) if _is_accumulated(variable) else gradient
        for gradient, variable in pairs
    ]
    with _clipping_sums():
        clipped = optimizer._clip_gradients(stand_ins)
    result = []
    for (gradient, variable), before, after in zip(pairs, stand_ins, clipped, strict=True):
        if _is_accumulated(variable):
            scale = _scale(optimizer, before, after) if norms else None
            variable.accumulated = dataclasses.replace(
                variable.accumulated, clip=_clip_of_part(optimizer, scale), needs_norms=norms
            )
        result.append((gradient if _is_accumulated(variable) else after, variable))
    return result


def _is_accumulated(variable: tf.Variable) -> bool:
    return isinstance(variable, ShardedVariable) and variable.accumulated is not None


def _stand_in(table: ShardedVariable, gradient: Gradient, norm: bool) -> tf.Tensor:
    return tf.sqrt(table_update.sum_of_squares(table, gradient)) if norm else tf.zeros([])


def _scale(optimizer: keras.optimizers.Optimizer, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    if optimizer.clipnorm:  # As `tf.clip_by_norm` scales elements, also where their norm overflows.
        return optimizer.clipnorm / tf.maximum(before, optimizer.clipnorm)
    return tf.math.divide_no_nan(after, before)


def _clip_of_part(
    optimizer: keras.optimizers.Optimizer, scale: tf.Tensor | None
) -> Callable[[tf.Tensor], tf.Tensor]:
    def clip(part: tf.Tensor) -> tf.Tensor:
        if scale is not None:
            return part * scale
        with _clipping_sums():
            (clipped,) = optimizer._clip_gradients([part])
        return clipped

    return clip
