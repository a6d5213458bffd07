# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The tasks of the training benchmark: a model, an optimizer, and data that come with Python."""

import dataclasses
import math
from collections.abc import Callable

import keras
import numpy as np

_IMAGE_SIZE = 32
_CONTEXT = 64
_WIDTH = 256
_HEADS = 8
_BLOCKS = 4
_VALIDATION_WINDOWS = 256


@dataclasses.dataclass(frozen=True)
class Task:
    """Something to learn."""

    make: Callable[[int], keras.Model]  # A compiled model, for a number of steps.
    inputs: np.ndarray
    labels: np.ndarray
    validation: tuple[np.ndarray, np.ndarray]
    measure: str  # What is reported of a trained model.
    of_logs: Callable[[dict], float]  # Computes it from the logs of `evaluate`.


def load(name: str) -> Task:
    """Returns a task.

    "resnet-50" tells handwritten digits apart, "transformer" predicts the next character of text.
    """
    return {"resnet-50": _resnet, "transformer": _transformer}[name]()


def _resnet() -> Task:
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    images = images.repeat(_IMAGE_SIZE // 8, 1).repeat(_IMAGE_SIZE // 8, 2).repeat(3, 3)
    order = np.random.RandomState(0).permutation(len(images))
    border = len(images) * 4 // 5

    def make(steps: int) -> keras.Model:
        model = keras.applications.ResNet50(
            weights=None,
            classes=10,
            input_shape=(_IMAGE_SIZE, _IMAGE_SIZE, 3),
            classifier_activation=None,
        )
        for layer in model.layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.momentum = 0.9  # For runs of some hundred steps.
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(_sgd(0.005, steps), loss, metrics=["accuracy"])
        return model

    train, rest = order[:border], order[border:]
    return Task(
        make,
        images[train],
        labels[train].astype("int32"),
        (images[rest], labels[rest].astype("int32")),
        "accuracy",
        lambda logs: logs["accuracy"],
    )


def load_text() -> tuple[np.ndarray, np.ndarray, int]:
    """The text of Python's own documentation of its language, its characters as numbers.

    For training and validation (the last tenth), and the size of the alphabet.
    """
    from pydoc_data import topics

    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    alphabet = sorted(set(text))
    numbers = np.array([alphabet.index(character) for character in text], np.int32)
    border = len(numbers) * 9 // 10
    return numbers[:border], numbers[border:], len(alphabet)


def windows(numbers, starts, context: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and the characters that follow them: two arrays of [windows, context]."""
    rows = np.stack([numbers[start : start + context + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def make_transformer(
    alphabet: int, context: int, width: int, heads: int, blocks: int
) -> keras.Model:
    """A decoder-only Transformer over characters."""
    layers = keras.layers
    characters = keras.Input((context,), dtype="int32")
    # Computed from the input: a layer's output for a constant would be a constant, too, and the
    # layer would never learn.
    positions = keras.ops.cumsum(keras.ops.ones_like(characters), axis=-1) - 1
    x = layers.Embedding(alphabet, width)(characters)
    x = x + layers.Embedding(context, width)(positions)
    for _ in range(blocks):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(heads, width // heads)
        x = x + attention(normal, normal, use_causal_mask=True)
        normal = layers.LayerNormalization()(x)
        x = x + layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(normal))
    return keras.Model(characters, layers.Dense(alphabet)(layers.LayerNormalization()(x)))


def _transformer() -> Task:
    training, validation, alphabet = load_text()

    def make(steps: int) -> keras.Model:
        model = make_transformer(alphabet, _CONTEXT, _WIDTH, _HEADS, _BLOCKS)
        model.compile(
            _sgd(0.1, steps), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        return model

    starts = np.random.RandomState(0).permutation(len(training) - _CONTEXT - 1)[:32768]
    space = np.linspace(0, len(validation) - _CONTEXT - 2, _VALIDATION_WINDOWS).astype(int)
    inputs, labels = windows(training, starts, _CONTEXT)
    return Task(
        make,
        inputs,
        labels,
        windows(validation, space, _CONTEXT),
        "perplexity",
        lambda logs: math.exp(logs["loss"]),
    )


def cosine_decay(learning_rate: float, steps: int) -> keras.optimizers.schedules.CosineDecay:
    """A learning rate that falls to 0 after a warm-up of a twentieth of the steps."""
    warm_up = steps // 20
    return keras.optimizers.schedules.CosineDecay(
        0.0, steps - warm_up, warmup_target=learning_rate, warmup_steps=warm_up
    )


def _sgd(learning_rate: float, steps: int) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(cosine_decay(learning_rate, steps), momentum=0.9)
