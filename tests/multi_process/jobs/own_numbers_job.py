# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Numbers that a step does not take from its rows alone: own_numbers_job.py REPORT."""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear

strategy = tfdear.DearStrategy(timeout=60)
RANK, SIZE = strategy.rank, strategy.num_replicas_in_sync
X = np.random.RandomState(3).randn(24, 2).astype("float32")
report = {}


def fit(model, x, y=None, batch_size=12, epochs=2, **options):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.01), **options)
    history = model.fit(
        *((x,) if y is None else (x, y)),
        batch_size=batch_size,
        epochs=epochs,
        shuffle=False,
        verbose=0,
    )
    return history.history


class Noisy(keras.Model):
    """Logs what it makes of noise alone, whose shape is known."""

    def __init__(self):
        super().__init__()
        self.generator = keras.layers.Dense(1)
        self.seeds = keras.random.SeedGenerator(7)

    def build(self, input_shape):
        self.generator.build((None, 2))

    def call(self, inputs):
        return self.generator(inputs)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.generator(tf.random.normal([6, 2])) ** 2)
        variables = self.generator.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        stateless = keras.random.normal([5], seed=self.seeds)
        (drawn,) = tf.while_loop(
            lambda total: total < 1.0, lambda total: [total + tf.random.uniform([])], [0.0]
        )
        return {"loss": loss, "stateless": tf.reduce_mean(stateless), "drawn": drawn}


class Moving(keras.Model):
    """Logs a moving average that the step has just written."""

    def __init__(self):
        super().__init__()
        self.moving = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.moving.assign(1.0)

    def build(self, input_shape):
        pass

    def call(self, inputs):
        return inputs

    def train_step(self, data):
        before = self.moving + 0.0
        self.moving.assign(0.5 * self.moving + tf.reduce_mean(data))
        return {"before": before, "after": self.moving + 0.0}


class Floats(keras.Model):
    """Logs numbers of Python and numpy, where it runs eagerly."""

    def build(self, input_shape):
        pass

    def call(self, inputs):
        return inputs

    def train_step(self, data):
        mean = tf.reduce_mean(data)
        return {"float": float(mean), "numpy": mean.numpy(), "scalar": np.float64(mean)}


with strategy.scope():
    noisy, moving, floats = Noisy(), Moving(), Floats()
report["noisy"] = fit(noisy, X)
report["moving"] = fit(moving, X, epochs=1, batch_size=24)
report["floats"] = fit(floats, X, run_eagerly=True, epochs=1, batch_size=24)

with strategy.scope():
    averaged = {
        "trainable": tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN),
        "weight": keras.layers.Layer().add_weight(shape=(), aggregation="mean").value,
    }
    unknown = tf.Variable(0.0, shape=tf.TensorShape(None))  # Is compared, too.
    counter = keras.metrics.Mean()
    always = keras.metrics.Mean()
    statistic = tf.Variable(0.0, trainable=False)
    inner, sibling = keras.metrics.Sum(), keras.metrics.Sum()


@tf.function
def write_ranks():
    def step():
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        for variable in averaged.values():
            variable.assign(tf.cast(rank, tf.float32) + 1)

    strategy.run(step)


write_ranks()
report["averaged"] = {name: float(variable) for name, variable in averaged.items()}

# A branch that some ranks take: row 0 belongs to rank 0.
values = tf.concat([[5.0], tf.zeros([2 * SIZE - 1])], 0)
data = tf.data.Dataset.from_tensors(values).unbatch().batch(2 * SIZE)


@tf.function
def in_branches(x):
    def step(x):
        always.update_state(x)
        result = 0.0
        if tf.reduce_any(x > 0):
            counter.update_state(x)
            statistic.assign(tf.reduce_max(x))
            # Also in a branch of the branch.
            if tf.reduce_any(x > 4):
                counter.update_state(x)
        nested = 0.0
        if tf.size(x) > 0:  # All take it.
            counter.update_state(x)
            result = counter.result()
            if tf.size(x) > 1:
                inner.update_state(x)
            nested = inner.result()
        if tf.reduce_any(x > 0):
            sibling.update_state(x)
        elif always.result() > 100.0:
            counter.update_state(x)
        return result, nested

    return strategy.run(step, args=(x,))


for batch in strategy.experimental_distribute_dataset(data):
    result, nested = in_branches(batch)
report["branches"] = {
    "in the step": float(result),
    "in a branch": float(nested),
    "inner": float(inner.result()),
    "sibling": float(sibling.result()),
    "counter": float(counter.result()),
    "count": float(counter.count),
    "always": float(always.result()),
    "statistic": float(statistic),
}


def clipped(steps, **clip):
    """Weights after a training on equal rows, so that clipping is that of one process."""
    keras.utils.set_random_seed(2)
    with strategy.scope():
        layer = keras.layers.Dense(2, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((2,)), layer])
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps, **clip)
        model.compile(optimizer, "mse")
    rows = 6 * (steps or 1)
    x, y = np.tile([[1.0, 2.0]], (rows, 1)), np.full((rows, 2), 9.0)
    model.fit(x, y, batch_size=6, verbose=0)
    return layer.kernel.numpy().tolist()


for name in ("clipnorm", "global_clipnorm", "clipvalue"):
    report[name] = [clipped(steps, **{name: 0.5}) for steps in (None, 2, 3)]


class Langevin(keras.optimizers.Optimizer):
    """Adds noise to every step."""

    def build(self, variables):
        if not self.built:
            super().build(variables)

    def update_step(self, gradient, variable, learning_rate):
        noise = tf.random.normal(variable.shape)
        self.assign_sub(variable, learning_rate * gradient + 0.01 * noise)


def noisy_weights():
    with strategy.scope():
        dense = [keras.layers.Dense(2, kernel_initializer="ones") for _ in range(2)]
        model = keras.Sequential([keras.Input((2,)), *dense])
        model.compile(Langevin(0.0), "mse")
    model.fit(X, X, batch_size=12, verbose=0)
    model.evaluate(X, X, verbose=0)  # Compares the ranks.
    return [layer.kernel.numpy().tolist() for layer in dense]


class Seeded(Langevin):
    def update_step(self, gradient, variable, learning_rate):
        self.assign_sub(variable, keras.random.normal(variable.shape, seed=self.seeds))


def seeded():
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
        optimizer = Seeded(0.0)
        optimizer.seeds = keras.random.SeedGenerator(3)
        model.compile(optimizer, "mse")
    try:
        model.fit(X, X, batch_size=12, verbose=0)
    except NotImplementedError as error:
        return str(error)
    return ""


def float8():
    with strategy.scope():
        dense = [keras.layers.Dense(4), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((2,)), *dense])
        model.quantize("float8")
        model.compile("adam", "mse")
    model.fit(X, X, batch_size=9, epochs=2, verbose=0)
    model.evaluate(X, X, verbose=0)
    return dense[0].inputs_amax_history.numpy()[:6].tolist()


report["noisy weights"] = noisy_weights()
report["seeded"] = seeded() if SIZE > 1 else ""
report["float8"] = float8()

with open(f"{sys.argv[1]}.{RANK}", "w") as file:
    json.dump(report, file)
