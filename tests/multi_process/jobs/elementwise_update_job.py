# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains with every optimizer, its updates translated and not; prints a line of JSON for each."""

import hashlib
import json

import keras
import numpy as np
import tensorflow as tf

import tfdear
from tfdear.gradients import elementwise_update

_ROWS, _INPUTS, _OUTPUTS = 64, 37, 61
OPTIMIZERS = {
    "sgd": lambda o: o.SGD(0.01),
    "momentum": lambda o: o.SGD(o.schedules.CosineDecay(0.1, 10), momentum=0.9),
    "nesterov": lambda o: o.SGD(0.01, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "adam": lambda o: o.Adam(),
    "adamw": lambda o: o.AdamW(clipnorm=1.0),
    "rmsprop": lambda o: o.RMSprop(momentum=0.9, centered=True),
    "adagrad": lambda o: o.Adagrad(),
    "adadelta": lambda o: o.Adadelta(),
    "nadam": lambda o: o.Nadam(),
    "average": lambda o: o.Adam(use_ema=True),
    "accumulated": lambda o: o.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
    "scaled": lambda o: o.LossScaleOptimizer(o.Adam()),
    "amsgrad": lambda o: o.Adam(amsgrad=True),
    "lion": lambda o: o.Lion(),
    "ftrl": lambda o: o.Ftrl(),
    "adamax": lambda o: o.Adamax(),
}
if hasattr(keras.optimizers, "ScheduleFreeAdamW"):
    OPTIMIZERS["schedule_free"] = lambda o: o.ScheduleFreeAdamW(warmup_steps=4)


class _Held(keras.callbacks.Callback):
    """Holds the value of a weight while training changes the weight."""

    def on_train_batch_begin(self, batch, logs=None):
        del logs
        if batch == 1:
            self.value = tf.convert_to_tensor(self.model.weights[0])
            self.copy = self.value.numpy().copy()


def train(strategy, make):
    keras.utils.set_random_seed(1)
    random = np.random.RandomState(0)
    inputs = random.randn(_ROWS, _INPUTS).astype("float32")
    labels = random.randn(_ROWS, _OUTPUTS).astype("float32")
    layers = keras.layers
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((_INPUTS,)),
                layers.Dense(53, activation="relu"),
                layers.LayerNormalization(),
                layers.Dense(_OUTPUTS),
            ]
        )
        model.compile(make(keras.optimizers), "mse")
    held = _Held()
    model.fit(inputs, labels, batch_size=16, epochs=3, verbose=0, callbacks=[held])
    np.testing.assert_array_equal(held.value.numpy(), held.copy)
    values = [np.array(variable) for variable in (*model.weights, *model.optimizer.variables)]
    return b"".join(value.tobytes() for value in values)


def main():
    strategy = tfdear.DearStrategy()
    translate = elementwise_update.translate
    translated = []
    translated_inexactly = []

    def counting(function, shape):
        program = translate(function, shape)
        translated.append(program is not None)
        inexact = translate(function, shape, exact_bits=False)
        translated_inexactly.append(inexact is not None)
        return program

    for name, make in OPTIMIZERS.items():
        translated.clear()
        translated_inexactly.clear()
        elementwise_update.translate = counting
        fast = train(strategy, make)
        elementwise_update.translate = lambda function, shape: None
        slow = train(strategy, make)
        digest = hashlib.sha256(fast).hexdigest()
        report = {"name": name, "translated": sum(translated), "of": len(translated)}
        report["inexactly"] = sum(translated_inexactly)
        print(json.dumps(report | {"equal": fast == slow, "digest": digest}), flush=True)


main()
