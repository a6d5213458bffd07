# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The models of the overlap benchmark, for Keras 2 and 3."""

import time

import bert_shapes  # type: ignore[import-not-found]
import keras
import numpy as np
import tensorflow as tf

_IMAGE_SIZE = 64
# Steps of every turn that are not measured.
FIRST_STEPS = 2
_CLASSES = 10


def build(name: str, wrap_optimizer=lambda optimizer: optimizer) -> keras.Model:
    """A compiled model: "resnet-50", "densenet-201", "vgg-16", "bert-base" or "bert-small"."""
    if name in bert_shapes.MODELS:
        model = _bert(*bert_shapes.MODELS[name])
    else:
        maker = {
            "resnet-50": keras.applications.ResNet50,
            "densenet-201": keras.applications.DenseNet201,
            "vgg-16": keras.applications.VGG16,
        }[name]
        model = maker(
            weights=None,
            classes=_CLASSES,
            input_shape=(_IMAGE_SIZE, _IMAGE_SIZE, 3),
            classifier_activation=None,
        )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(wrap_optimizer(keras.optimizers.SGD(0.001, momentum=0.9)), loss)
    return model


def _bert(blocks: int, width: int, heads: int) -> keras.Model:
    """BERT's word embedding, blocks and pooler, with one output per example."""
    layers = keras.layers
    tokens = keras.Input([bert_shapes.SEQUENCE], dtype="int32")
    value = layers.LayerNormalization()(layers.Embedding(bert_shapes.VOCABULARY, width)(tokens))
    for _ in range(blocks):
        attended = layers.MultiHeadAttention(heads, width // heads)(value, value)
        value = layers.LayerNormalization()(layers.add([value, attended]))
        inner = layers.Dense(4 * width, activation="gelu")(value)
        value = layers.LayerNormalization()(layers.add([value, layers.Dense(width)(inner)]))
    pooled = layers.Dense(width, activation="tanh")(value[:, 0])
    return keras.Model(tokens, layers.Dense(_CLASSES)(pooled))


def data(name: str, batch_size: int, seed: int = 0):
    """One batch of inputs and labels."""
    random = np.random.RandomState(seed)
    labels = random.randint(0, _CLASSES, batch_size)
    if name in bert_shapes.MODELS:
        return random.randint(0, bert_shapes.VOCABULARY, [batch_size, bert_shapes.SEQUENCE]).astype(
            "int32"
        ), labels
    shape = [batch_size, _IMAGE_SIZE, _IMAGE_SIZE, 3]
    return random.rand(*shape).astype("float32"), labels


def endless(batch) -> tf.data.Dataset:
    """Repeats a batch, without tf.data's autotuner, for which `fit` may wait at its end."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensors(batch).cache().repeat().with_options(options)


class _StepEnds(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.times: list[float] = []

    def on_train_batch_end(self, batch, logs=None):
        del batch, logs
        self.times.append(time.perf_counter())


def seconds_per_step(model, dataset, steps: int, finish=lambda: None) -> float:
    """Trains for some steps; returns the mean time of one in the steady state.

    The start of `fit` and the first steps, which find an idle link, are not measured.
    """
    ends = _StepEnds()
    model.fit(dataset, epochs=1, steps_per_epoch=FIRST_STEPS + steps, verbose=0, callbacks=[ends])
    finish()
    return (ends.times[-1] - ends.times[FIRST_STEPS - 1]) / steps
