# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Looks for overflows in gradients of embeddings, without making them dense.

A word that occurs several times has several rows in a sparse gradient. Keras makes a flag for each
element of the table, in which the last row of a word hides what is in the others.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.gradients.sparse_rows import Gradient

SEAMS = seams.Seams()


@SEAMS.wrap(_keras_private.CHECK_FINITE)
def _look_at_all_rows(
    original: seams.Original,
    optimizer: keras.optimizers.Optimizer,
    grads: Sequence[Gradient | None],
) -> tf.Tensor:
    if not getattr(optimizer._distribution_strategy.extended, "is_dear", False):
        return original(optimizer, grads)
    # Rows that are not there are zero, which is finite.
    values = [each.values if isinstance(each, tf.IndexedSlices) else each for each in grads]
    return original(optimizer, values)
