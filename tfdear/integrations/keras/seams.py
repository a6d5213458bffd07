# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""All functions of Keras and TensorFlow that are wrapped.

Keras uses a strategy through `tf.distribute`'s interface except in these functions, which know only
the strategies that TensorFlow ships. Each is wrapped in a job of several ranks ([Note: Seams]), and
behaves as before under any other strategy. With one process only the building of models is wrapped,
and what has to do with embeddings.
"""

import keras

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear._private import tensorflow as _tf_private
from tfdear.integrations.keras import (
    batches,
    building,
    clipping,
    embeddings,
    exports,
    losses,
    optimizers,
    overflows,
    saved_model,
    saving,
    steps,
    table_accumulation,
    table_constraints,
    table_exports,
    table_files,
    table_optimizers,
    tables,
    variables,
)

IN_ONE_PROCESS = (
    building.BUILDING,
    clipping.SEAMS,
    embeddings.SEAMS,
    overflows.SEAMS,
    steps.SAMPLING,
    tables.SEAMS,
    table_accumulation.SEAMS,
    table_constraints.SEAMS,
    table_exports.SEAMS,
    table_files.SEAMS,
    table_optimizers.SEAMS,
)
OF_KERAS = (
    saving.SEAMS,
    exports.SEAMS,
    losses.SEAMS,
    steps.SEAMS,
    batches.SEAMS,
    optimizers.SEAMS,
    building.SEAMS,
    variables.SEAMS,
)
OF_TENSORFLOW = (saved_model.SEAMS,)


def _keras_runs_on_tensorflow() -> bool:
    return keras.backend.backend() == "tensorflow"


def verify() -> None:
    """Compares what is private in TensorFlow and Keras with the supported versions.

    Call it before the ranks meet. Raises an ImportError if something does not fit.
    """
    _tf_private.REGISTRY.verify()
    if _keras_runs_on_tensorflow():
        _keras_private.REGISTRY.verify()


def install(world_size: int) -> None:
    """Wraps what a job of this many ranks needs: all of it or, if something is missing, nothing."""
    collections: list[seams.Seams] = []
    if _keras_runs_on_tensorflow():
        collections += IN_ONE_PROCESS
    if world_size > 1:
        collections += OF_TENSORFLOW
        if _keras_runs_on_tensorflow():
            collections += OF_KERAS
    seams.install(*collections)
