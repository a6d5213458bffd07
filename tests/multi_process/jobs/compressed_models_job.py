# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Several models, phases and trainings of one script under compression: compressed_models_job.py
DIRECTORY."""

import json
import pathlib
import sys
import warnings

import keras
import numpy as np
import tensorflow as tf

import tfdear

DIRECTORY = pathlib.Path(sys.argv[1])
RANDOM = np.random.RandomState(7)
X = RANDOM.randn(24, 40).astype("float32")
Y = RANDOM.randn(24, 30).astype("float32")
COMPRESSION = tfdear.compression.MSTopK(0.05, dense_below=0, warm_up_steps=4)


def strategy_with(compression):
    return tfdear.DearStrategy(
        timeout=30.0, compression=compression, fusion=tfdear.fusion.FixedSize(1024)
    )


def make(strategy, seed):
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((40,)), keras.layers.Dense(50), keras.layers.Dense(30)]
        )
        model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse")
    return model


def fit(model, epochs=1, callbacks=()):
    return model.fit(
        X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks)
    )


def two_models(first):
    """Weights of a model that goes on from a file, and what the one before it holds back."""
    path = DIRECTORY / f"second_{first}.weights.h5"
    with strategy_with(COMPRESSION) as strategy:
        one, two = make(strategy, 1), make(strategy, 2)
        if first:
            fit(one)
        fit(two)
        two.save_weights(path)
        state = strategy._job.engine.save_compression([v.value.number for v in one.variables])
        fit(two)
        expected = two.get_weights()
        two.load_weights(path)
        after = strategy._job.engine.save_compression([v.value.number for v in one.variables])
        fit(two)
        return {
            "expected": [w.tolist() for w in expected],
            "weights": [w.tolist() for w in two.get_weights()],
            "first is kept": state == after,
            "first holds back": len(state),
        }


def phases(compression):
    """Of two layers in parallel, one trains, then both. The loss is linear in all weights."""
    with strategy_with(compression) as strategy:
        keras.utils.set_random_seed(3)
        with strategy.scope():
            given = keras.Input((40,))
            frozen, layer = keras.layers.Dense(30), keras.layers.Dense(30)
            model = keras.Model(given, frozen(given) + layer(given))
        # What the second layer holds back stays there, or goes along, and comes back.
        for trainable in (False, True, False, True, False):
            with strategy.scope():
                frozen.trainable = trainable
                model.compile(keras.optimizers.SGD(0.05), linear)
            fit(model)
        if compression is not None:
            strategy.set_density(1.0)
        # What is left is sent: of the first layer, then of both.
        fit(model)
        with strategy.scope():
            frozen.trainable = True
            model.compile(keras.optimizers.SGD(0.05), linear)
        fit(model)
        return [w.tolist() for w in model.get_weights()]


def linear(y, prediction):
    return keras.ops.mean(y * prediction, -1)


class Twins(keras.Model):
    """Two parts of the same shapes, each with an optimizer, of which the second begins."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(30), keras.layers.Dense(30)]
        self.optimizers = [keras.optimizers.SGD(0.05, momentum=0.5) for _ in range(2)]

    def build(self, input_shape):
        for part, optimizer in zip(self.parts, self.optimizers, strict=True):
            part.build(input_shape)
            optimizer.build(part.trainable_variables)

    def call(self, inputs):
        return self.parts[0](inputs) - self.parts[1](inputs)

    def train_step(self, batch):
        x, y = batch
        for part, optimizer in reversed(list(zip(self.parts, self.optimizers, strict=True))):
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((part(x) - y) ** 2)
            variables = part.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def twins(interrupted):
    """Weights after two epochs, of which the second may be that of another strategy."""
    path = DIRECTORY / "twins.weights.h5"
    for epoch in range(2):
        with strategy_with(COMPRESSION) as strategy:
            keras.utils.set_random_seed(4)
            with strategy.scope():
                model = Twins()
                model.build((None, 40))
                model.compile()
            if epoch == 1:
                model.load_weights(path)
            fit(model, 1 if interrupted else 2)
            if not interrupted or epoch == 1:
                return [w.tolist() for part in model.parts for w in part.get_weights()]
            model.save_weights(path)
    return None


def densities():
    """The densities of the trainings of one script, whose schedule ends without compression."""
    schedule = tfdear.callbacks.CompressionSchedule({1: None})
    sparse = []
    with strategy_with(tfdear.compression.MSTopK(0.05, dense_below=0)) as strategy:
        model = make(strategy, 1)
        for _ in range(2):
            strategy.events()
            fit(model, 2, [schedule])
            sparse.append(sum(event.kind == "selection" for event in strategy.events()))
    return sparse


def without_compression():
    with strategy_with(None) as strategy:
        model = make(strategy, 1)
        try:
            fit(model, callbacks=[tfdear.callbacks.CompressionSchedule({5: None})])
        except ValueError as error:
            return str(error)
    return ""


report = {
    "alone": two_models(False),
    "second": two_models(True),
    "dense": phases(None),
    "sparse": phases(tfdear.compression.MSTopK(0.05, dense_below=0)),
    "densities": densities(),
    "whole": twins(False),
    "resumed": twins(True),
    "error": without_compression(),
}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with strategy_with(COMPRESSION) as strategy:
        rank = strategy.rank
(DIRECTORY / f"report_{rank}").write_text(json.dumps(report))
