# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Random small models and trainings, each made from a number, for a comparison with plain Keras.

What differs between ranks and one process by design is left out: statistics of a BatchNormalization
that is not synchronized, dropout masks, masked losses, clipping (of a rank's own gradients). So are
parameters whose gradient is zero but for rounding, such as a bias in front of a normalization:
adaptive optimizers would blow the rounding up.
"""

import dataclasses
import functools
import random

import case_table
import keras
import numpy as np
import tensorflow as tf

import tfdear

WORDS = 12
OPTIMIZERS = {
    "SGD": functools.partial(keras.optimizers.SGD, 0.02),
    "momentum": functools.partial(keras.optimizers.SGD, 0.01, momentum=0.9),
    "nesterov": functools.partial(keras.optimizers.SGD, 0.01, momentum=0.8, nesterov=True),
    "Adam": functools.partial(keras.optimizers.Adam, 1e-3),
    "amsgrad": functools.partial(keras.optimizers.Adam, 1e-3, amsgrad=True),
    "AdamW": functools.partial(keras.optimizers.AdamW, 1e-3, weight_decay=0.01),
    "RMSprop": functools.partial(keras.optimizers.RMSprop, 1e-3, momentum=0.5, centered=False),
    "Adagrad": functools.partial(keras.optimizers.Adagrad, 1e-2),
    "Adadelta": functools.partial(keras.optimizers.Adadelta, 0.5),
    "Adamax": functools.partial(keras.optimizers.Adamax, 1e-3),
    "Nadam": functools.partial(keras.optimizers.Nadam, 1e-3),
    "Ftrl": functools.partial(keras.optimizers.Ftrl, 1e-2, l2_regularization_strength=1e-3),
    "Lion": functools.partial(keras.optimizers.Lion, 1e-4),
    "Lamb": functools.partial(keras.optimizers.Lamb, 1e-3),
    "Adafactor": functools.partial(keras.optimizers.Adafactor, 1e-3),
    "LARS": functools.partial(tfdear.optimizers.LARS, 1.0, weight_decay=1e-3),
    "LAMB": functools.partial(tfdear.optimizers.LAMB, 1e-3, weight_decay=1e-2),
}
if case_table.MUON_WORKS:
    OPTIMIZERS["Muon"] = functools.partial(keras.optimizers.Muon, 1e-3)
# Nothing is divided by a gradient: rounding stays what it is.
EXACT = ("SGD", "momentum", "nesterov")
STEPS = ("keras", "compute_loss", "own", "tracked")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One random training."""

    seed: int
    inputs: tuple[str, ...]
    trunk: tuple[str, ...]
    heads: tuple[tuple[str, str], ...]  # Kind and loss of each output.
    activation: str
    regularized: bool
    penalty: str
    step: str
    optimizer: str
    average: bool  # Of the weights.
    accumulated: int  # Steps whose gradients are summed; 1 is none.
    loss_scale: bool
    batch: int
    rows: int
    epochs: int
    steps_per_execution: int
    eager: bool
    weighted: bool
    validated: bool
    dataset: bool

    @property
    def tolerance(self) -> float:
        return 1e-5 if self.optimizer in EXACT else 1e-3


LOSSES = {
    "numbers": ("object", "string", "huber", "rows", "mean", "sum", "cosine"),
    "classes": ("object", "rows", "mean", "sum"),
    "binary": ("object", "rows", "mean", "sum"),
}


def draw(seed: int) -> Setting:
    """The training with this number."""
    r = random.Random(seed)
    step = r.choice(("keras", "keras", *STEPS))
    kinds = [r.choice(tuple(LOSSES)) for _ in range(r.choice((1, 1, 2)))]
    batch = r.choice((1, 2, 3, 4, 5, 7, 8, 12))
    optimizer = r.choice(tuple(OPTIMIZERS))
    heads = tuple((kind, r.choice(LOSSES[kind])) for kind in kinds)
    # A sum over the batch is one only to a loss object that says so: written by hand, nobody can
    # tell it from a mean.
    return Setting(
        seed=seed,
        inputs=tuple(r.sample(("vector", "picture", "series", "words"), r.choice((1, 1, 2)))),
        trunk=tuple(
            r.choice(("dense", "layer_norm", "batch_norm", "frozen_norm", "attention"))
            for _ in range(r.choice((0, 1, 1, 2)))
        ),
        heads=heads,
        activation=r.choice(("tanh", "gelu", "swish", "relu")),
        regularized=r.random() < 0.3,
        penalty=r.choice(("none", "none", "none", "add_loss", "activity")),
        step=step,
        optimizer=optimizer,
        average=r.random() < 0.1,
        accumulated=r.choice((1, 1, 1, 1, 2, 3)),
        loss_scale=r.random() < 0.1,
        batch=batch,
        rows=batch * r.randint(1, 4) + r.randrange(batch),
        epochs=r.choice((1, 2)),
        steps_per_execution=r.choice((1, 1, 2, 3)),
        eager=r.random() < 0.06,
        # A scalar times the weights of examples is no mean over examples.
        weighted=(
            step in ("keras", "compute_loss")
            and all(loss != "mean" for _, loss in heads)
            and r.random() < 0.2
        ),
        validated=r.random() < 0.2,
        dataset=r.random() < 0.5,
    )


class DenseTable(keras.layers.Layer):
    """An embedding whose gradient is a dense tensor: the rows of a word are summed."""

    def build(self, input_shape):
        initializer = keras.initializers.RandomUniform(-0.5, 0.5, seed=11)
        self.table = self.add_weight(shape=(WORDS, 3), initializer=initializer, name="embeddings")

    def call(self, words):
        return keras.ops.matmul(keras.ops.one_hot(words, WORDS), self.table)


class MeanPenalty(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


def branch(kind, setting, plain, r):
    """An input and a vector made from it."""
    regularizer = keras.regularizers.L1L2(0.01, 0.02) if setting.regularized else None
    if kind == "vector":
        inputs = keras.Input((5,))
        layer = keras.layers.Dense(
            r.choice((3, 6)), setting.activation, kernel_regularizer=regularizer
        )
        return inputs, layer(inputs)
    if kind == "picture":
        inputs = keras.Input((5, 5, 2))
        layer = r.choice(
            (
                keras.layers.Conv2D(3, 3, activation=setting.activation),
                keras.layers.SeparableConv2D(3, 3, activation=setting.activation),
            )
        )
        pool = r.choice((keras.layers.Flatten, keras.layers.GlobalAveragePooling2D))
        return inputs, pool()(layer(inputs))
    if kind == "series":
        inputs = series = keras.Input((4, 3))
    else:
        inputs = keras.Input((4,), dtype="int32")
        initializer = keras.initializers.RandomUniform(-0.5, 0.5, seed=11)
        name = "embedding"  # Muon knows embeddings by their names.
        table = (
            DenseTable(name=name)
            if plain
            else keras.layers.Embedding(WORDS, 3, embeddings_initializer=initializer, name=name)
        )
        series = table(inputs)
    reader = r.choice(("gru", "lstm", "convolution", "flatten"))
    if reader == "gru":
        return inputs, keras.layers.GRU(4)(series)
    if reader == "lstm":
        return inputs, keras.layers.LSTM(3)(series)
    if reader == "convolution":
        convolution = keras.layers.Conv1D(4, 2, activation=setting.activation)
        return inputs, keras.layers.GlobalAveragePooling1D()(convolution(series))
    return inputs, keras.layers.Flatten()(series)


def trunk_layer(kind, x, setting):
    if kind == "dense":
        return keras.layers.Dense(5, setting.activation)(x)
    if kind == "attention":
        # A bias would add the same to all values, which a BatchNormalization after it takes away:
        # its gradient would be rounding. Plain Keras changes it by 2e-5 of its size if the rows of
        # the batches are reversed.
        split = keras.layers.Reshape((3, 2))(keras.layers.Dense(6, use_bias=False)(x))
        return keras.layers.Flatten()(
            keras.layers.MultiHeadAttention(1, 2, use_bias=False)(split, split)
        )
    x = keras.layers.Dense(5, use_bias=False)(x)
    if kind == "layer_norm":
        # The same holds for what this adds: that of plain Keras changes by twice its size if rows
        # are reversed.
        return keras.layers.LayerNormalization(center="batch_norm" not in setting.trunk)(x)
    if kind == "batch_norm":
        return keras.layers.BatchNormalization(synchronized=True, momentum=0.9)(x)
    return keras.layers.BatchNormalization(trainable=False)(x)


def by_hand(kind, y, predicted):
    """A loss for each example."""
    if kind == "numbers":
        return keras.ops.mean(keras.ops.square(y - predicted), axis=-1)
    if kind == "classes":
        return keras.losses.sparse_categorical_crossentropy(y, predicted, from_logits=True)
    return keras.losses.binary_crossentropy(y, predicted, from_logits=True)


def make_loss(kind, name):
    """What `compile` gets for one output."""
    if name in ("object", "sum"):
        reduction = {"reduction": "sum"} if name == "sum" else {}
        if kind == "numbers":
            return keras.losses.MeanSquaredError(**reduction)
        if kind == "classes":
            return keras.losses.SparseCategoricalCrossentropy(from_logits=True, **reduction)
        return keras.losses.BinaryCrossentropy(from_logits=True, **reduction)
    if name == "rows":
        return functools.partial(by_hand, kind)
    if name == "mean":
        return lambda y, predicted: keras.ops.mean(by_hand(kind, y, predicted))
    named = {"string": "mse", "huber": keras.losses.Huber(), "cosine": "cosine_similarity"}
    return named[name]


class OwnStep(keras.Model):
    """A model whose step is written by hand, in the way that the setting says."""

    def prepare(self, setting):
        self.setting = setting
        self.losses_of_heads = [
            make_loss(kind, name) if name in ("object", "sum") else None
            for kind, name in setting.heads
        ]
        self.tracker = keras.metrics.Mean(name="tracked")

    @property
    def metrics(self):
        if self.setting.step == "compute_loss":
            return super().metrics
        return [self.tracker]

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            if self.setting.step == "compute_loss":
                loss = self.compute_loss(x, y, predicted, sample_weight)
            else:
                loss = self.loss_of(y, predicted)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        if self.setting.step == "compute_loss":
            return self.compute_metrics(x, y, predicted, sample_weight)
        if self.setting.step == "own":
            return {"loss": loss}
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def loss_of(self, y, predicted):
        y, predicted = tf.nest.flatten(y), tf.nest.flatten(predicted)
        loss = sum(self.losses)
        for place, (kind, _) in enumerate(self.setting.heads):
            compute = self.losses_of_heads[place]
            if compute is not None:
                part = compute(y[place], predicted[place])
            else:
                part = keras.ops.mean(by_hand(kind, y[place], predicted[place]))
            loss = loss + (1.0 + place) * part
        return loss


def build(setting: Setting, plain: bool) -> keras.Model:
    """The compiled model. `plain`: embeddings have dense gradients."""
    r = random.Random(setting.seed + 1)
    branches = [branch(kind, setting, plain, r) for kind in setting.inputs]
    inputs, vectors = zip(*branches, strict=True)
    x = keras.layers.Concatenate()(list(vectors)) if len(vectors) > 1 else vectors[0]
    for kind in setting.trunk:
        x = trunk_layer(kind, x, setting)
    if setting.penalty == "add_loss":
        x = MeanPenalty()(x)
    elif setting.penalty == "activity":
        x = keras.layers.ActivityRegularization(l2=0.05)(x)
    width = {"numbers": 2, "classes": 3, "binary": 1}
    outputs = [keras.layers.Dense(width[kind])(x) for kind, _ in setting.heads]
    if setting.step == "keras":
        model = keras.Model(list(inputs), outputs)
    else:
        model = OwnStep(list(inputs), outputs)
        model.prepare(setting)
    arguments = {}
    if setting.accumulated > 1:
        arguments["gradient_accumulation_steps"] = setting.accumulated
    if setting.average:
        arguments.update(use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2)
    optimizer = OPTIMIZERS[setting.optimizer](**arguments)
    if setting.loss_scale:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=16.0)
    model.compile(
        optimizer,
        [make_loss(kind, name) for kind, name in setting.heads],
        loss_weights=[1.0 + place for place in range(len(outputs))],
        steps_per_execution=setting.steps_per_execution,
        run_eagerly=setting.eager,
    )
    return model


def data(setting: Setting, rows: int):
    """Inputs and targets, as lists of arrays."""
    r = np.random.RandomState(setting.seed)
    shapes = {"vector": (5,), "picture": (5, 5, 2), "series": (4, 3)}
    x = [
        r.randint(0, WORDS, (rows, 4)).astype("int32")
        if kind == "words"
        else r.randn(rows, *shapes[kind]).astype("float32")
        for kind in setting.inputs
    ]
    targets = {
        "numbers": lambda: r.randn(rows, 2).astype("float32"),
        "classes": lambda: r.randint(0, 3, (rows, 1)).astype("int32"),
        "binary": lambda: r.randint(0, 2, (rows, 1)).astype("float32"),
    }
    return x, [targets[kind]() for kind, _ in setting.heads]
