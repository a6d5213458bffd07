# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A linear model that remembers which examples each step computes on."""

import time

import keras
import numpy as np
import tensorflow as tf

RATE = 0.05


def table(count=300):
    """Features and targets of the examples, whose numbers begin with 1."""
    random = np.random.RandomState(5)
    features = random.randn(count + 1, 4).astype("float32")
    targets = (features @ [[1.0], [-2.0], [0.5], [3.0]] + 0.3).astype("float32")
    return features, targets


class Recorder(keras.Model):
    """A linear model that remembers the numbers of the examples of every step."""

    def __init__(self, pause=0.0):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="zeros")
        self.steps: list[list[int]] = []
        self.ends: list[float] = []
        self.pause = pause

    def call(self, inputs):
        return self.dense(inputs["features"])

    def record(self, data):
        def note(numbers):
            self.steps.append([int(number) for number in numbers.ravel() if number > 0])
            time.sleep(self.pause)
            self.ends.append(time.monotonic())
            return np.int64(0)

        x = keras.utils.unpack_x_y_sample_weight(data)[0]
        tf.numpy_function(note, [x["number"]], tf.int64)

    def train_step(self, data):
        self.record(data)
        return super().train_step(data)

    def test_step(self, data):
        self.record(data)
        return super().test_step(data)

    def predict_step(self, data):
        x = keras.utils.unpack_x_y_sample_weight(data)[0]
        return tf.cast(x["number"], tf.float32) + 0.0 * super().predict_step(data)

    def take(self):
        steps, self.steps = self.steps, []
        return steps


def recorder(context, pause=0.0, **arguments):
    with context.scope():
        model = Recorder(pause)
        model.compile(keras.optimizers.SGD(RATE), "mse", **arguments)
    return model


def example(number):
    features, targets = table()
    return (
        {"number": number[tf.newaxis], "features": tf.gather(features, number)},
        tf.gather(targets, number),
    )


def padded(steps):
    """Steps of different numbers of rows as one array."""
    width = max([1, *map(len, steps)])
    return np.array([step + [0] * (width - len(step)) for step in steps]).reshape(-1, width)


def trained(context, dataset, epochs=2, validation=None, **arguments):
    """What `fit`, `evaluate`, `predict` and loops compute on, and what is learned."""
    model = recorder(context, **arguments)
    history = model.fit(dataset, epochs=epochs, validation_data=validation, verbose=0)
    results = {"fit": padded(model.take()), "loss": history.history["loss"]}
    results |= dict(zip(("kernel", "bias"), model.get_weights(), strict=True))
    losses = [model.evaluate(dataset, verbose=0) for _ in range(2)]
    results |= {"evaluate": padded(model.take()), "evaluated": losses}
    results["predict"] = model.predict(dataset, verbose=0).ravel().astype(int)
    for name, loop in {"loop": eager_loop, "loop_in_function": loop_in_function}.items():
        results[name] = loop(context.distribute(dataset), context)
    return results


def eager_loop(distributed, context):
    return padded([batch[0]["number"].numpy().ravel().tolist() for batch in distributed])


def loop_in_function(distributed, context):
    steps = []

    def note(numbers):
        steps.append(numbers.ravel().tolist())
        return np.int64(1)

    @tf.function
    def epoch(batches):
        count = tf.constant(0, tf.int64)
        for batch in batches:
            count += tf.numpy_function(note, [batch[0]["number"]], tf.int64)
        return count

    assert int(epoch(distributed)) == len(steps)
    return padded(steps)
