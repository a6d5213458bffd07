# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Writes sharded tables into Keras's files, and reads them, in blocks: no rank holds the whole.

The files are those that plain Keras writes, and any number of ranks reads them.
"""

from typing import Any

import h5py  # type: ignore[import-untyped]
import keras
import numpy as np
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.gradients.sharded_variable import ShardedVariable

SEAMS = seams.Seams()
_BLOCK_BYTES = 8 << 20  # Of whole rows that are in memory at once.


def table_of(variable: object) -> ShardedVariable | None:
    """The sharded table in a variable of Keras, if it is one."""
    value = getattr(variable, "_value", variable)
    return value if isinstance(value, ShardedVariable) else None


def write(store: Any, key: str, table: ShardedVariable) -> None:
    """Writes a whole table as an entry of a store of Keras's."""
    rows, columns = table.placement.shape
    store[key] = np.zeros((0, columns), np.float32)  # Makes the group, if it is the first entry.
    group = getattr(store, "_h5_entry_group", None)
    if type(store) is not _keras_private.H5_STORE.get() or not isinstance(group, h5py.Group):
        store[key] = table.numpy()
        return
    del group[key]
    entry = group.create_dataset(key, (rows, columns), np.float32)
    block = _rows_of_block(table)
    for begin in range(0, rows, block):
        end = min(begin + block, rows)
        entry[begin:end] = table.read_rows(begin, end)


def read(store: Any, key: str, table: ShardedVariable) -> None:
    """Reads this rank's part of a table from an entry of a store of Keras's, on all ranks."""
    group = getattr(store, "_h5_entry_group", None)
    placement = table.placement
    if type(store) is not _keras_private.H5_STORE.get() or not isinstance(group, h5py.Group):
        table.assign(store[key])
        return
    entry = group[key]
    if entry.shape != placement.shape:
        raise ValueError(
            f"The file has a table of shape {entry.shape} for {placement.label}, which has shape "
            f"{placement.shape}."
        )
    columns = placement.partition.columns_of(placement.rank)
    part = np.empty(placement.shard_shape, np.float32)
    block = _rows_of_block(table)
    written = 0
    for begin in range(0, placement.partition.rows, block):
        end = min(begin + block, placement.partition.rows)
        if placement.partition.kind == "column":
            # All columns of a block lie together in the file.
            rows = entry[begin:end, columns.start : columns.stop]
        else:
            first = -(-(begin - placement.offset) // placement.stride) * placement.stride
            rows = entry[begin:end][first + placement.offset - begin :: placement.stride]
        part[written : written + len(rows)] = rows
        written += len(rows)
    table.assign_shard(tf.convert_to_tensor(part))


def _rows_of_block(table: ShardedVariable) -> int:
    return max(_BLOCK_BYTES // (4 * table.placement.partition.columns), 1)


@SEAMS.wrap(_keras_private.SAVE_OPTIMIZER)
def _save_optimizer(
    original: seams.Original, optimizer: keras.optimizers.Optimizer, store: Any
) -> None:
    if not any(table_of(variable) is not None for variable in optimizer.variables):
        original(optimizer, store)
        return
    for number, variable in enumerate(optimizer.variables):
        table = table_of(variable)
        if table is not None:
            write(store, str(number), table)
        else:
            store[str(number)] = variable.numpy()


@SEAMS.wrap(_keras_private.LOAD_OPTIMIZER)
def _load_optimizer(
    original: seams.Original, optimizer: keras.optimizers.Optimizer, store: Any
) -> None:
    has_tables = any(table_of(variable) is not None for variable in optimizer.variables)
    if not has_tables or len(store.keys()) != len(optimizer.variables):
        original(optimizer, store)
        return
    for number, variable in enumerate(optimizer.variables):
        table = table_of(variable)
        if table is not None:
            read(store, str(number), table)
        else:
            variable.assign(store[str(number)])


@SEAMS.wrap(_keras_private.IS_MEMORY_SUFFICIENT)
def _is_memory_sufficient(original: seams.Original, model: keras.Model) -> bool:
    # Whether Keras may hold the file in memory.
    return original(model) and not any(table_of(v) is not None for v in model.variables)
