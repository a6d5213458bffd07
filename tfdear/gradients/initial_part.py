# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Initial values of sharded tables: a rank keeps its part of them, and no rank makes the whole.

They do not depend on the number of ranks. A table that fits one block is drawn as
`keras.layers.Embedding` draws it; a larger one block by block, each from a seed of its own.
"""

import copy
import hashlib
from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from tfdear.base import checks
from tfdear.gradients import placement as placement_module
from tfdear.gradients import whole_table
from tfdear.gradients.placement import Placement

BLOCK_BYTES = 64 << 20

_Initializer: TypeAlias = Any  # A function, or an object of Keras.
# Gives all ranks rank 0's value.
_Broadcast: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
_FILLS = (keras.initializers.Zeros, keras.initializers.Ones)
# Of these a block is as the whole, but for the numbers.
_DRAWS = (
    keras.initializers.RandomNormal,
    keras.initializers.TruncatedNormal,
    keras.initializers.RandomUniform,
    keras.initializers.VarianceScaling,
)


class PartInitializer:
    """An initializer that yields this rank's part of what another one yields.

    Call it on all ranks, within `placement.of_new_variables`.
    """

    def __init__(
        self,
        initializer: _Initializer,
        placement: Placement,
        broadcast: _Broadcast,
        block_bytes: int = BLOCK_BYTES,
    ):
        self._initializer = initializer
        self.placement = placement
        self._broadcast = broadcast
        self._block_bytes = block_bytes

    def __call__(self, shape: Any, dtype: Any = None) -> tf.Tensor:
        placement = self.placement
        if tuple(shape) != placement.shape:
            raise ValueError(
                f"Expected that {placement.label} is made with the shape {placement.shape}. "
                f"Received: {tuple(shape)}"
            )
        dtype = tf.as_dtype(dtype or keras.config.floatx())
        if placement_module.current() is not placement:
            # Nothing is made: shapes of a model are inferred before its variables exist.
            return tf.zeros(placement.shape, dtype)
        with tf.init_scope():
            if _fills(self._initializer):
                return tf.cast(self._initializer(placement.shard_shape, dtype=dtype.name), dtype)
            rows, columns = placement.shape
            per_block = max(self._block_bytes // (columns * dtype.size), 1)
            if per_block >= rows:
                return whole_table.part_of(placement, self._block(0, rows, rows, dtype))
            part = np.empty(placement.shard_shape, dtype.as_numpy_dtype)
            for number, begin in enumerate(range(0, rows, per_block)):
                count = min(per_block, rows - begin)
                block = self._block(number, count, rows, dtype).numpy()
                first = -(-(begin - placement.offset) // placement.stride)
                held = block[
                    first * placement.stride + placement.offset - begin :: placement.stride
                ]
                width = placement.shard_shape[1]
                part[first : first + len(held)] = held[:, placement.first_column :][:, :width]
            return tf.convert_to_tensor(part)

    def _block(self, number: int, count: int, rows: int, dtype: tf.DType) -> tf.Tensor:
        """Some rows of the whole table, on all ranks alike."""
        shape = (count, self.placement.partition.columns)
        initializer = self._initializer
        if type(initializer) in _subclasses(_DRAWS) and checks.is_whole(initializer.seed):
            drawing = copy.copy(initializer)
            seed = int(self._broadcast(tf.constant(initializer.seed, tf.int64)))
            drawing.seed = seed if number == 0 else _seed(seed, number)
            if isinstance(drawing, keras.initializers.VarianceScaling):
                drawing.scale *= _fan(drawing.mode, shape) / _fan(drawing.mode, (rows, shape[1]))
            return tf.cast(drawing(shape, dtype=dtype.name), dtype)
        if count < rows and isinstance(
            initializer, (keras.initializers.Orthogonal, keras.initializers.Identity)
        ):
            raise ValueError(
                f"{self.placement.label} cannot be made with {type(initializer).__name__}: it "
                f"takes more than {self._block_bytes >> 20} MiB, so that no rank makes the whole. "
                "Use an initializer that draws every element by itself."
            )
        value = tf.cast(tf.convert_to_tensor(initializer(shape, dtype=dtype.name)), dtype)
        return self._broadcast(tf.ensure_shape(value, shape))


def _fills(initializer: _Initializer) -> bool:
    if type(initializer) is keras.initializers.Constant:
        return np.ndim(initializer.value) == 0
    return type(initializer) in _FILLS


def _subclasses(kinds: tuple[type, ...]) -> set[type]:
    """The kinds, and those of Keras that are derived from them; others may do something else."""
    derived: list[type] = []
    for kind in kinds:
        derived += kind.__subclasses__()
    return {*kinds, *(each for each in derived if each.__module__.startswith("keras."))}


def _seed(seed: int, number: int) -> int:
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 33


def _fan(mode: str, shape: tuple[int, int]) -> float:
    """What VarianceScaling divides by."""
    fans = {"fan_in": shape[0], "fan_out": shape[1], "fan_avg": sum(shape) / 2}
    return max(fans[mode], 1.0)
