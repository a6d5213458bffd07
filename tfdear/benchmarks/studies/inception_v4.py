# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Inception-v4, which keras.applications lacks, from Keras layers; make_traces.py records it.

Reference: Szegedy et al., "Inception-v4, Inception-ResNet and the Impact of Residual Connections
on Learning", AAAI 2017, figures 3 to 9.
"""

import keras
from keras import layers


def inception_v4(size: int = 224, classes: int = 1000) -> keras.Model:
    """The network for `size` x `size` images; its authors use 299, the DeAR paper 224."""
    image = keras.Input((size, size, 3))
    x = _stem(image)
    for _ in range(4):
        x = _join(
            _convolution(_average(x), 96, 1),
            _convolution(x, 96, 1),
            _chain(x, (64, 1), (96, 3)),
            _chain(x, (64, 1), (96, 3), (96, 3)),
        )
    x = _join(
        layers.MaxPooling2D(3, 2)(x),
        _convolution(x, 384, 3, 2, "valid"),
        _convolution(_chain(x, (192, 1), (224, 3)), 256, 3, 2, "valid"),
    )
    for _ in range(7):
        x = _join(
            _convolution(_average(x), 128, 1),
            _convolution(x, 384, 1),
            _chain(x, (192, 1), (224, (1, 7)), (256, (7, 1))),
            _chain(x, (192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1))),
        )
    x = _join(
        layers.MaxPooling2D(3, 2)(x),
        _convolution(_convolution(x, 192, 1), 192, 3, 2, "valid"),
        _convolution(_chain(x, (256, 1), (256, (1, 7)), (320, (7, 1))), 320, 3, 2, "valid"),
    )
    for _ in range(3):
        narrow = _convolution(x, 384, 1)
        wide = _chain(x, (384, 1), (448, (1, 3)), (512, (3, 1)))
        x = _join(
            _convolution(_average(x), 256, 1),
            _convolution(x, 256, 1),
            _convolution(narrow, 256, (1, 3)),
            _convolution(narrow, 256, (3, 1)),
            _convolution(wide, 256, (1, 3)),
            _convolution(wide, 256, (3, 1)),
        )
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(image, layers.Dense(classes)(x), name="inception_v4")


def _stem(x):
    x = _convolution(x, 32, 3, 2, "valid")
    x = _convolution(x, 32, 3, padding="valid")
    x = _convolution(x, 64, 3)
    x = _join(layers.MaxPooling2D(3, 2)(x), _convolution(x, 96, 3, 2, "valid"))
    x = _join(
        _convolution(_convolution(x, 64, 1), 96, 3, padding="valid"),
        _convolution(_chain(x, (64, 1), (64, (7, 1)), (64, (1, 7))), 96, 3, padding="valid"),
    )
    return _join(_convolution(x, 192, 3, 2, "valid"), layers.MaxPooling2D(3, 2)(x))


def _convolution(x, filters, kernel, strides=1, padding="same"):
    x = layers.Conv2D(filters, kernel, strides, padding, use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


def _chain(x, *convolutions):
    for filters, kernel in convolutions:
        x = _convolution(x, filters, kernel)
    return x


def _average(x):
    return layers.AveragePooling2D(3, 1, "same")(x)


def _join(*branches):
    return layers.Concatenate()(list(branches))
