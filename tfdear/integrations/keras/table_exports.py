# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Exports models with sharded tables as those of plain layers, which load without tfdear.

An exported folder has the operations of the model, not only its weights. So the model has plain
variables in place of its tables while it is exported: this rank's memory must hold them whole.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear._private import tensorflow as _tf_private
from tfdear.integrations.keras.table_files import table_of

SEAMS = seams.Seams()


@SEAMS.wrap(_keras_private.EXPORT_SAVED_MODEL)
def _export_whole_tables(
    original: seams.Original, model: keras.Model, *args: Any, **kwargs: Any
) -> object:
    with _whole_tables(model):
        return original(model, *args, **kwargs)


@contextlib.contextmanager
def _whole_tables(model: keras.Model) -> Iterator[None]:
    variables = [variable for variable in model.variables if table_of(variable) is not None]
    tables = [variable.value for variable in variables]
    try:
        for variable, table in zip(variables, tables, strict=True):
            # No strategy makes it: the other ranks need not export.
            variable._value = _tf_private.resource_variable_ops.ResourceVariable(
                table.numpy(), trainable=table.trainable, name=variable.name
            )
        yield
    finally:
        for variable, table in zip(variables, tables, strict=True):
            variable._value = table
