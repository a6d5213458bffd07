# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A weight that is added to what a layer gets."""

from __future__ import annotations

import keras


class AddedWeight(keras.layers.Layer):
    """Adds the same weight to every row: vectors of positions, or a bias.

    Args:
        shape: of the weight.
        initializer: of it.
        name: as of any layer.
    """

    def __init__(self, shape: tuple[int, ...], initializer: str, name: str | None = None):
        super().__init__(name=name)
        self._weight = self.add_weight(shape=shape, initializer=initializer)

    def call(self, inputs):
        return inputs + self._weight
