# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Clips gradients of embeddings as dense ones, without making them dense.

A word that occurs several times has several rows in a sparse gradient. Keras clips each of them by
itself, and has the wrong norm: the dense gradient has their sum.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.gradients import sparse_rows
from tfdear.gradients.sparse_rows import Gradient

SEAMS = seams.Seams()


@SEAMS.wrap(_keras_private.CLIP_GRADIENTS)
def _clip_sums_of_rows(
    original: seams.Original,
    optimizer: keras.optimizers.Optimizer,
    grads: Sequence[Gradient | None],
) -> list[Gradient | None]:
    clips = optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue
    strategy = optimizer._distribution_strategy
    if not clips or not getattr(strategy.extended, "is_dear", False):
        return original(optimizer, grads)
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
