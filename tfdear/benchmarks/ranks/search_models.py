# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The models of the search benchmark: small, with short steps."""

import keras
import numpy as np

_CLASSES = 10
_WIDTH = 512
_DEPTH = 16
# Channels of each stage, and its convolutions.
_STAGES = ((32, 1), (64, 1), (128, 2), (256, 2), (384, 2))


def build(name: str) -> keras.Model:
    """A compiled "perceptron" (equal layers) or "convolutional" (most weights in the last ones)."""
    inputs, outputs = {"perceptron": _perceptron, "convolutional": _convolutional}[name]()
    model = keras.Model(inputs, keras.layers.Dense(_CLASSES)(outputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.001, momentum=0.9), loss)
    return model


def _perceptron():
    inputs = value = keras.Input([_WIDTH])
    for _ in range(_DEPTH):
        value = keras.layers.Dense(_WIDTH, activation="relu")(value)
    return inputs, value


def _convolutional():
    inputs = value = keras.Input([32, 32, 3])
    for channels, count in _STAGES:
        for _ in range(count):
            value = keras.layers.Conv2D(channels, 3, padding="same", activation="relu")(value)
        value = keras.layers.MaxPooling2D()(value)
    return inputs, keras.layers.Flatten()(value)


def data(model: keras.Model, batch_size: int, seed: int):
    """One batch of inputs and labels."""
    random = np.random.RandomState(seed)
    inputs = random.rand(batch_size, *model.input_shape[1:]).astype("float32")
    return inputs, random.randint(0, _CLASSES, batch_size)
