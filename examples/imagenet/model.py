# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""ResNet for pictures of any size, and its BatchNormalization's statistics estimated anew."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import tensorflow as tf

import tfdear

layers = keras.layers

# Blocks of each stage, and whether a block is a bottleneck of three convolutions.
_STAGES = {18: ((2, 2, 2, 2), False), 50: ((3, 4, 6, 3), True)}
DEPTHS = tuple(_STAGES)
# Of ImageNet's pixels from 0 to 255, by channel.
_MEAN = (123.7, 116.3, 103.5)
_DEVIATION = (58.4, 57.1, 57.4)


def make_model(depth: int, classes: int, synchronized: bool = False) -> keras.Model:
    """Returns ResNet v1.5, of RGB pixels from 0 to 255, that gives scores of classes.

    In version 1.5 the 3x3 convolution of a bottleneck has the stride, not the 1x1 before it. The
    last gamma of a block is 0 at first: a block begins as its shortcut.

    Args:
        depth: 18 or 50.
        classes: number of scores.
        synchronized: whether BatchNormalization takes the statistics of all ranks' rows.
    """
    blocks_of_stages, is_bottleneck = _STAGES[depth]

    def convolve(x, filters, size, strides=1, gamma="ones"):
        x = layers.Conv2D(
            filters,
            size,
            strides,
            padding="same",
            use_bias=False,
            kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_out"),
        )(x)
        return layers.BatchNormalization(
            momentum=0.9, epsilon=1e-5, gamma_initializer=gamma, synchronized=synchronized
        )(x)

    def add_block(x, width, strides):
        filters = 4 * width if is_bottleneck else width
        shortcut = x
        if strides > 1 or x.shape[-1] != filters:
            shortcut = convolve(x, filters, 1, strides)
        if is_bottleneck:
            x = layers.ReLU()(convolve(x, width, 1))
            x = layers.ReLU()(convolve(x, width, 3, strides))
            x = convolve(x, filters, 1, gamma="zeros")
        else:
            x = layers.ReLU()(convolve(x, width, 3, strides))
            x = convolve(x, width, 3, gamma="zeros")
        return layers.ReLU()(layers.Add()([x, shortcut]))

    images = keras.Input((None, None, 3), name="images")
    x = layers.Normalization(
        mean=_MEAN, variance=[deviation**2 for deviation in _DEVIATION], dtype="float32"
    )(images)
    x = layers.ReLU()(convolve(x, 64, 7, 2))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, blocks in enumerate(blocks_of_stages):
        for block in range(blocks):
            x = add_block(x, 64 << stage, 2 if stage and not block else 1)
    x = layers.GlobalAveragePooling2D()(x)
    # With mixed precision, too, scores and their loss are float32.
    initial = keras.initializers.RandomNormal(stddev=0.01)
    scores = layers.Dense(classes, kernel_initializer=initial, dtype="float32", name="scores")(x)
    return keras.Model(images, scores, name=f"resnet{depth}")


def estimate_statistics(
    strategy: tfdear.DearStrategy, model: keras.Model, batches: tf.data.Dataset, count: int
) -> int:
    """Estimates the statistics of all BatchNormalization from batches, for weights as they are.

    Averaged weights have never seen a batch, and the statistics in the model are those of others.

    Args:
        strategy: the model's; all ranks call this.
        model: its other variables stay as they are.
        batches: of (images, ...), prepared as for training.
        count: of batches, at most.

    Returns:
        How many batches there were.
    """
    norms = [layer for layer in model.layers if isinstance(layer, layers.BatchNormalization)]
    momenta = [layer.momentum for layer in norms]
    statistics = [v for layer in norms for v in (layer.moving_mean, layer.moving_variance)]
    for layer in norms:
        layer.momentum = 0.0  # So that they hold those of one batch, averaged over the ranks.

    @tf.function
    def step(images):
        # What comes out is not needed, but for its being computed.
        strategy.run(lambda rows: model(rows, training=True), args=(images,))

    sums, seen = [np.zeros(variable.shape) for variable in statistics], 0
    try:
        for images, *_ in itertools.islice(
            iter(strategy.experimental_distribute_dataset(batches)), count
        ):
            step(images)
            strategy.synchronize()
            seen += 1
            for total, variable in zip(sums, statistics, strict=True):
                total += keras.ops.convert_to_numpy(variable)
    finally:
        for layer, momentum in zip(norms, momenta, strict=True):
            layer.momentum = momentum
    if seen:
        for total, variable in zip(sums, statistics, strict=True):
            variable.assign(total / seen)
    return seen
