# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Weights that only some ranks have loaded or assigned are found, named and mended."""

import case_table
import keras
import numpy as np
import tensorflow as tf

import tfdear

X = np.random.RandomState(0).rand(12, 3).astype("float32")
Y = X.sum(1, keepdims=True)


def build(context, **arguments):
    with context.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((3,)),
                keras.layers.Dense(4, name="first"),
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.1),
                keras.layers.Dense(1, name="last"),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01, **arguments), "mse")
    return model


def message(function):
    """What an error of all ranks says; every rank goes on."""
    try:
        function()
    except tfdear.TfdearError as error:
        return str(error)
    return ""


def first_step(context):
    """A loop: no model is known, so all that is trained is compared at its first step."""
    model = build(context)
    if context.rank == 1:
        model.layers[0].kernel.assign(model.layers[0].kernel + 1)
    step = tf.function(lambda: context.run(lambda: None))
    found = message(step)
    return {"found": found}


def loaded_by_the_chief(context):
    model = build(context)
    if context.rank == 0:
        path = str(context.directory / "only.weights.h5")
        build_alone = [value + 1 for value in model.get_weights()]
        model.set_weights(build_alone)
        model.save_weights(path)
        model.load_weights(path)

    def fit():
        model.fit(X, Y, batch_size=6, verbose=0)

    results = {"fit": message(fit), "again": message(fit)}
    results["evaluate"] = message(lambda: model.evaluate(X, Y, verbose=0))
    context.strategy.broadcast_variables(model)
    results["mended"] = message(fit)
    results["weight"] = model.get_weights()[-1]
    return results


def last_bit(context):
    """One bit of one variable, with gradients that are still accumulating on every rank."""
    model = build(context, gradient_accumulation_steps=4)
    model.fit(X, Y, batch_size=6, epochs=3, verbose=0)
    fine = message(lambda: model.fit(X, Y, batch_size=6, verbose=0))
    variance = model.layers[1].moving_variance
    if context.rank == context.world_size - 1:
        variance.assign(np.nextafter(np.array(variance), np.float32(2), dtype="float32"))
    results = {"fine": fine, "found": message(lambda: model.evaluate(X, Y, verbose=0))}
    context.strategy.broadcast_variables(variance, root=context.world_size - 1)
    results["mended"] = message(lambda: model.evaluate(X, Y, verbose=0))
    return results


class Meddler(keras.callbacks.Callback):
    """Writes a weight on one rank in the middle of an epoch."""

    def __init__(self, meddles):
        super().__init__()
        self.meddles = meddles
        self.steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.meddles and batch == 2:
            self.model.layers[-1].bias.assign([7.0])


def while_training(context):
    """The job has TFDEAR_CHECK_EVERY=2: found after the fourth step."""
    model = build(context)
    meddler = Meddler(context.rank == 1)
    found = message(lambda: model.fit(X, Y, batch_size=2, verbose=0, callbacks=[meddler]))
    return {"found": found, "steps": meddler.steps}


def in_a_loop(context):
    """The same for steps that a script calls from Python, compiled or not."""
    model = build(context)
    # What the cases before have left.
    context.strategy.broadcast_variables(context.strategy.extended.variables())
    results = {}
    for name, step in {"eager": lambda: None, "compiled": tf.function(lambda: None)}.items():
        done = []

        def loop(step=step, done=done):
            for number in range(6):
                context.strategy.run(step)
                done.append(number)
                if number == 2 and context.rank == 1:
                    model.layers[-1].bias.assign([7.0])

        results[name] = message(loop)
        results[f"{name} steps"] = len(done)
        context.strategy.broadcast_variables(model)
        results[f"{name} mended"] = message(lambda step=step: context.strategy.run(step))
    return results


def other_models(context):
    """Ranks with other variables, and arguments that make no sense."""
    variables = [tf.Variable(np.ones(3 + context.rank, "float32"))]
    found = message(lambda: context.strategy.extended.consistency.check(variables))
    try:
        context.strategy.broadcast_variables(variables, root=context.world_size)
    except ValueError as error:
        return {"found": found, "root": str(error)}
    return {}


CASES = {
    case.__name__: case
    for case in (
        first_step,
        loaded_by_the_chief,
        last_bit,
        while_training,
        in_a_loop,
        other_models,
    )
}

if __name__ == "__main__":
    case_table.main(CASES)
