# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Plain embedding layers: lookups that do not copy the table, updates that cost what rows cost."""

from typing import Any

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.gradients import row_tables
from tfdear.gradients import variable as variable_module
from tfdear.gradients.row_variable import RowVariable
from tfdear.integrations.keras import lookup

SEAMS = seams.Seams()
# Of a smaller table dense updates take less than what is done to save them.
_LEAST_BYTES = 1 << 20


@SEAMS.wrap(_keras_private.EMBEDDING_BUILD)
def _build_with_rows(
    original: seams.Original, layer: keras.layers.Embedding, input_shape: Any = None
) -> object:
    if layer.built or lookup.dear_strategy() is None or not _may_go_by_rows(layer):
        return original(layer, input_shape)
    initializer = layer.embeddings_initializer
    layer.embeddings_initializer = row_tables.RowsInitializer(initializer)
    try:
        with row_tables.of_new_variables():
            return original(layer, input_shape)
    finally:
        layer.embeddings_initializer = initializer


def _may_go_by_rows(layer: keras.layers.Embedding) -> bool:
    """Whether the layer's table can be one of [Note: Tables of plain layers]."""
    return (
        type(layer) is keras.layers.Embedding  # A subclass may do anything.
        and layer.variable_dtype == "float32"
        and layer.trainable
        and layer.embeddings_constraint is None
        and layer.embeddings_regularizer is None  # It makes the gradient dense.
        and not layer.lora_rank
        and layer.quantization_mode is None
        and 4 * layer.input_dim * layer.output_dim >= _LEAST_BYTES
    )


@SEAMS.wrap(_keras_private.EMBEDDING_CALL)
def _gather_on_the_variable(
    original: seams.Original, layer: keras.layers.Embedding, inputs: Any
) -> object:
    table = _table_of(layer)
    if table is None or not isinstance(inputs, tf.Tensor):
        return original(layer, inputs)
    ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
    # As `keras.ops.take` has it.
    ids = tf.where(ids < 0, ids + tf.cast(layer.input_dim, ids.dtype), ids)
    dtype = tf.as_dtype(layer.compute_dtype)
    if isinstance(table, RowVariable):
        return table.look_up(ids, dtype)
    return tf.cast(tf.gather(table, ids), dtype)


def _table_of(layer: keras.layers.Embedding) -> tf.Variable | None:
    """The variable that the layer looks up, if it does nothing else with it."""
    if layer.quantization_mode is not None or getattr(layer, "lora_enabled", False):
        return None
    variable: Any = getattr(layer, "_embeddings", None)
    table = getattr(variable, "_value", None)
    # Within some scopes of Keras a variable has another value, or another type.
    if not isinstance(table, tf.Variable) or variable.value is not table:
        return None
    if not isinstance(table, variable_module.DearVariable):
        extended = tf.distribute.get_strategy().extended
        if not getattr(extended, "is_dear", False):
            return None
    return table if layer.embeddings is variable else None
