# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Steps that take their losses in many ways, which must come out as in one process."""

import contextlib
import functools
import logging

import case_table
import keras
import numpy as np
import tensorflow as tf

# 21 rows in batches of 8: the ranks' numbers of rows differ, and of the last batch's five rows
# three ranks have 1, 2 and 2. Batches of ONE_ROW leave a rank without rows.
X = np.random.RandomState(0).randn(21, 4).astype("float32")
Y = (X @ np.float32([[1.0], [-2.0], [0.5], [3.0]]) + 0.3).astype("float32")


def layers(**arguments):
    return [keras.layers.Input((4,)), keras.layers.Dense(3, **arguments), keras.layers.Dense(1)]


def data(size=8):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)


class HandMade(keras.Model):
    """Takes its loss by `loss_of(model, x, y)`, logs it in a `Mean` and returns it as it is."""

    def __init__(self, loss_of, **arguments):
        super().__init__()
        self.loss_of = loss_of
        self.net = keras.Sequential(layers(**arguments))
        self.tracked = keras.metrics.Mean(name="tracked")

    def call(self, x):
        return self.net(x)

    @property
    def metrics(self):
        return [self.tracked]

    def train_step(self, batch):
        x, y = batch[:2]
        with tf.GradientTape() as tape:
            loss = self.loss_of(self, x, y)
            scaled = self.optimizer.scale_loss(loss)
        variables = self.net.trainable_variables
        self.optimizer.apply(tape.gradient(scaled, variables), variables)
        self.tracked.update_state(loss)
        return {"tracked": self.tracked.result(), "returned": loss}

    def test_step(self, batch):
        loss = self.loss_of(self, *batch[:2])
        self.tracked.update_state(loss)
        return {"tracked": self.tracked.result(), "returned": loss}


def square(model, x, y):
    return keras.ops.square(model.net(x) - y)


def with_regularizer(model, x, y):
    weights = model.net.trainable_variables[0]
    return keras.losses.MeanSquaredError()(y, model.net(x)) + 0.1 * keras.ops.sum(weights**2)


def self_scaled(model, x, y):
    # First a loss of Keras's, so that what follows is noticed late.
    loss = keras.losses.MeanSquaredError()(y, model.net(x))
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    weights = model.net.trainable_variables[0]
    return loss + 0.1 * tf.reduce_sum(weights**2) / replicas


@tf.function
def loss_in_a_function(model, x, y):
    return keras.losses.MeanSquaredError()(y, model.net(x))


@tf.function
def sum_in_a_function(model, x, y):
    loss = keras.losses.MeanSquaredError(reduction="sum")(y, model.net(x))
    return 0.1 * loss + 0.2 * loss_in_a_function(model, x, y)


def self_scaled_beside_a_function(model, x, y):
    # The function is traced before it is known that the step scales by itself.
    loss = loss_in_a_function(model, x, y)
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    weights = model.net.trainable_variables[0]
    return loss + 0.1 * tf.reduce_sum(weights**2) / replicas


def average_loss(model, x, y):
    per_row = tf.reshape(keras.ops.square(model.net(x) - y), [-1])
    return tf.nn.compute_average_loss(per_row, global_batch_size=7)


LOSSES = {
    "mean": lambda model, x, y: keras.ops.mean(square(model, x, y)),
    "reduce_mean": lambda model, x, y: tf.reduce_mean(square(model, x, y)),
    "function": lambda model, x, y: keras.ops.mean(keras.losses.huber(y, model.net(x))),
    "object": lambda model, x, y: keras.losses.MeanSquaredError()(y, model.net(x)),
    "sum_object": lambda model, x, y: (
        0.05 * keras.losses.MeanSquaredError(reduction="sum")(y, model.net(x))
    ),
    "mixture": lambda model, x, y: (
        keras.losses.MeanSquaredError()(y, model.net(x))
        + 0.2 * keras.ops.mean(keras.ops.abs(model.net(x)))
        + 0.01 * keras.losses.MeanAbsoluteError(reduction="sum")(y, model.net(x))
    ),
    "regularizer": with_regularizer,
}


def fit(model, dataset, **arguments):
    results = case_table.fit(model, dataset, epochs=2, shuffle=False, **arguments)
    evaluated = model.evaluate(dataset, verbose=0, return_dict=True)
    return {**results, **{f"history/evaluate_{k}": [v] for k, v in evaluated.items()}}


def sgd():
    return keras.optimizers.SGD(0.02, momentum=0.9)


def hand_made(context, loss_of, size=8, make_optimizer=sgd, **arguments):
    with context.scope():
        model = HandMade(loss_of)
        model.compile(make_optimizer(), **arguments)
    model.build((None, 4))
    return fit(model, data(size))


class UnevenParts(HandMade):
    """Two parts of a batch, of which ranks have different shares."""

    def train_step(self, batch):
        (x, y), (more_x, more_y) = batch
        with tf.GradientTape() as tape:
            first = keras.ops.mean(square(self, x, y))
            second = keras.losses.MeanAbsoluteError()(more_y, self.net(more_x))
            loss = first + 3.0 * second
        variables = self.net.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.tracked.update_state(second)
        return {"tracked": self.tracked.result(), "returned": loss}


def uneven_parts(context):
    more = tf.data.Dataset.from_tensor_slices((X[::-1], Y[::-1])).batch(5, drop_remainder=True)
    with context.scope():
        model = UnevenParts(None)
        model.compile(sgd())
    model.build((None, 4))
    return case_table.fit(model, tf.data.Dataset.zip((data(), more)), epochs=2)


def uneven_last_parts(context):
    """Parts of which ranks have the same shares, but for those of the last batch."""

    def first_rows(count, size):
        return tf.data.Dataset.from_tensor_slices((X, Y)).repeat().take(count).batch(size)

    with context.scope():
        model = UnevenParts(None)
        model.compile(sgd())
    model.build((None, 4))
    parts = tf.data.Dataset.zip((first_rows(22, 9), first_rows(44, 18)))
    return case_table.fit(model, parts, epochs=2)


class AddsLosses(keras.layers.Layer):
    def __init__(self, per_row):
        super().__init__()
        self.per_row = per_row

    def call(self, x):
        rows = keras.ops.mean(keras.ops.square(x), -1)
        self.add_loss(0.02 * rows if self.per_row else 0.2 * keras.ops.mean(rows))
        return x


def compiled(context, per_row=None, loss="mse"):
    with context.scope():
        given = layers(kernel_regularizer=keras.regularizers.L2(0.05))
        if per_row is not None:
            given.insert(2, AddsLosses(per_row))
        model = keras.Sequential(given)
        model.compile(sgd(), loss, metrics=["mae"])
    return fit(model, data())


def accumulated(context, loss_scale=False):
    # Batches of 8 rows and of 5 come together, of which the ranks' shares differ.
    def make_optimizer():
        optimizer = keras.optimizers.SGD(0.02, gradient_accumulation_steps=2)
        return keras.optimizers.LossScaleOptimizer(optimizer) if loss_scale else optimizer

    return hand_made(context, LOSSES["mean"], make_optimizer=make_optimizer)


def on_batch(context):
    with context.scope():
        model = HandMade(self_scaled)
        model.compile(keras.optimizers.SGD(0.02))
    model.build((None, 4))
    logs = [model.train_on_batch(X[:6], Y[:6], return_dict=True)["tracked"] for _ in range(3)]
    return {"history/tracked": logs, **case_table.weights(model)}


def plain_loop(context, in_scope, compiled_step):
    """The loop of a script for one process: every rank over all of the data."""
    with context.scope():
        model = keras.Sequential(layers())
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
        loss_object = keras.losses.MeanSquaredError()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_object(y, model(x)) + tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    step = tf.function(step) if compiled_step else step
    losses = []

    def loop():
        for x, y in data():
            losses.append(float(step(x, y)))

    if in_scope:
        with context.scope():
            loop()
    else:
        loop()
    return {"history/loss": losses, **case_table.weights(model)}


def loop_of_parts(context):
    """The same over a part of each rank's own, whose second batch overflows on one rank."""
    y = Y.copy()
    y[7] = 3e38
    with context.scope():
        model = keras.Sequential(layers())
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.05), initial_scale=64.0, dynamic_growth_steps=2
        )
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x) - y))
            scaled = optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    for begin in range(0, 18, 6):
        rows = slice(begin + context.rank, begin + 6, context.world_size)
        step(X[rows], y[rows])
    return {
        "scale": float(optimizer.dynamic_scale.numpy()),
        "steps": int(optimizer.inner_optimizer.iterations.numpy()),
        **case_table.weights(model),
    }


class DividesLater(HandMade):
    """Makes the gradients of a sum those of a mean."""

    def train_step(self, batch):
        x, y = batch[:2]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(square(self, x, y))
        variables = self.net.trainable_variables
        rows = tf.cast(tf.shape(x)[0], tf.float32)
        gradients = [gradient / rows for gradient in tape.gradient(loss, variables)]
        self.optimizer.apply(gradients, variables)
        return {"returned": loss}


def rows(x):
    return tf.cast(tf.shape(x)[0], tf.float32)


# The ways to take a sum are in the test of `row_sums`; here is what needs a strategy.
SUMS = {
    "reduce_sum": lambda model, x, y: tf.reduce_sum(square(model, x, y)),
    "scaled_sum": lambda model, x, y: tf.reduce_sum(square(model, x, y)),
}
NO_SUMS = {
    "sum_object": LOSSES["sum_object"],
    "by_count": lambda model, x, y: tf.reduce_sum(square(model, x, y)) / rows(x),
    "gathered": lambda model, x, y: tf.reduce_sum(
        tf.distribute.get_replica_context().all_gather(model.net(x) ** 2, axis=0)
    ),
    "self_scaled": lambda model, x, y: (
        tf.reduce_sum(square(model, x, y))
        / (8.0 * tf.distribute.get_strategy().num_replicas_in_sync)
    ),
    "divided_later": None,
}


@contextlib.contextmanager
def warnings_of_the_package():
    words = []
    handler = logging.Handler()
    handler.emit = lambda record: words.append(record.getMessage())
    logging.getLogger("absl").addHandler(handler)
    try:
        yield words
    finally:
        logging.getLogger("absl").removeHandler(handler)


def sums_by_hand(context):
    """A loss that is a sum over the rows is warned of, once, and no other."""
    results = {}
    for name, loss_of in {**SUMS, **NO_SUMS}.items():
        with context.scope():
            kind = HandMade if loss_of else DividesLater
            model = kind(loss_of, kernel_regularizer="l2")
            scales = name == "scaled_sum"
            model.compile(keras.optimizers.LossScaleOptimizer(sgd()) if scales else sgd())
        model.build((None, 4))
        context.strategy.extended._warnings.clear()
        with warnings_of_the_package() as words:
            for _ in range(2 if name in SUMS else 1):
                model.fit(X[:8], Y[:8], batch_size=8, verbose=0)
                model.make_train_function(force=True)
        results[name] = sum("a sum over the rows" in word for word in words)
    return results


def eager_losses(context):
    """Whether fit with `run_eagerly` says that it cannot see what a loss is."""

    def fit(make_model, **arguments):
        with context.scope():
            model = make_model()
            model.compile(sgd(), run_eagerly=True, **arguments)
        model.build((None, 4))
        context.strategy.extended._warnings.clear()
        with warnings_of_the_package() as words:
            model.fit(X[:8], Y[:8], batch_size=4, verbose=0)
        return sum("it cannot be seen" in word for word in words)

    def sequential(*more):
        return keras.Sequential([*layers(kernel_regularizer="l2"), *more])

    single = {"loss": lambda y, predicted: tf.reduce_sum(keras.ops.square(y - predicted))}
    return {
        "own step": fit(lambda: HandMade(LOSSES["mean"])),
        "single value": fit(sequential, **single),
        "add_loss": fit(lambda: sequential(AddsLosses(False)), loss="mse"),
        "object": fit(sequential, loss="mse"),
        "losses of rows": fit(lambda: sequential(AddsLosses(True)), loss="mse"),
    }


def summed_in_run(context):
    """In `strategy.run` gradients are summed; a step that scales nothing is told so, once."""
    with context.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.set_weights([np.ones((4, 1), "float32"), np.zeros(1, "float32")])
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build(model.trainable_variables)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x))
        optimizer.apply(tape.gradient(loss, model.trainable_variables))

    x = np.ones((6, 4), "float32")
    dataset = context.distribute(tf.data.Dataset.from_tensor_slices(x).repeat(2).batch(6))
    run = tf.function(lambda batch: context.run(step, (batch,)))
    with warnings_of_the_package() as words:
        for batch in dataset:
            run(batch)
    warned = sum("scaled no loss" in word for word in words)
    return {"warned": warned, "bias": model.get_weights()[1]}


CASES = {
    f"{name}_{size}": lambda context, loss_of=loss_of, size=size: hand_made(context, loss_of, size)
    for name, loss_of in LOSSES.items()
    for size in ((8, 20) if name in ("mean", "sum_object") else (8,))
}
CASES["eager"] = lambda context: hand_made(context, LOSSES["mixture"], run_eagerly=True)
CASES["several_steps"] = lambda context: hand_made(
    context, LOSSES["mixture"], steps_per_execution=2
)
CASES["adam"] = lambda context: hand_made(
    context, LOSSES["mean"], 20, lambda: keras.optimizers.Adam(0.01)
)
CASES["self_scaled"] = lambda context: hand_made(context, self_scaled, 7)
CASES["function_of_loss"] = lambda context: hand_made(context, loss_in_a_function, 8)
CASES["function_of_sum"] = lambda context: hand_made(context, sum_in_a_function, 8)
CASES["self_scaled_beside_a_function"] = lambda context: hand_made(
    context, self_scaled_beside_a_function, 7
)
CASES["average_loss"] = lambda context: hand_made(context, average_loss, 7)
CASES["accumulated"] = accumulated
CASES["accumulated_scaled"] = functools.partial(accumulated, loss_scale=True)
CASES["uneven_parts"] = uneven_parts
CASES["uneven_last_parts"] = uneven_last_parts
CASES["compiled"] = compiled
CASES["compiled_sum"] = lambda context: compiled(
    context, loss=keras.losses.Huber(reduction="sum", delta=0.05)
)
CASES["add_loss"] = lambda context: compiled(context, per_row=False)
CASES["add_loss_of_rows"] = lambda context: compiled(context, per_row=True)
CASES["on_batch"] = on_batch
CASES["loop"] = lambda context: plain_loop(context, False, True)
CASES["loop_in_scope"] = lambda context: plain_loop(context, True, True)
CASES["eager_loop"] = lambda context: plain_loop(context, False, False)
CASES["loop_of_parts"] = loop_of_parts
CASES["summed_in_run"] = summed_in_run
CASES["eager_losses"] = lambda context: eager_losses(context) if context.strategy else {}
CASES["sums_by_hand"] = lambda context: sums_by_hand(context) if context.strategy else {}

if __name__ == "__main__":
    case_table.main(CASES)
