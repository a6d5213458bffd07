# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Training loops of one's own, and data sets in the forms that scripts use."""

import case_table
import keras
import numpy as np
import tensorflow as tf

X = np.random.RandomState(0).randn(41, 4).astype("float32")
Y = (X.sum(1, keepdims=True) ** 2).astype("float32")
BATCH = 10


def parts(context):
    with context.scope():
        model = keras.Sequential(
            [keras.layers.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)]
        )
        optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
        optimizer.build(model.trainable_variables)
        metric = keras.metrics.MeanAbsoluteError()
    return model, optimizer, metric


def replica_step(model, optimizer, metric):
    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            each = tf.reduce_mean(tf.square(predicted - y), -1)
            loss = tf.nn.compute_average_loss(each, global_batch_size=BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        metric.update_state(y, predicted)
        return loss

    return step


def reduce(context, value):
    return context.strategy.reduce("SUM", value, axis=None) if context.strategy else value


def finish(model, optimizer, metric, losses):
    return {
        "losses": losses,
        "metric": float(metric.result()),
        "digests": case_table.digest([*model.variables, *optimizer.variables]),
        **case_table.weights(model),
    }


def dataset(rows=41):
    # The last batch has one row: with more than one rank, some have none.
    return tf.data.Dataset.from_tensor_slices((X[:rows], Y[:rows])).batch(BATCH)


def step_in_a_function(context):
    model, optimizer, metric = parts(context)
    step = replica_step(model, optimizer, metric)

    @tf.function
    def train(batch):
        return reduce(context, context.run(step, (batch,)))

    losses = [float(train(batch)) for _ in range(2) for batch in context.distribute(dataset())]
    return finish(model, optimizer, metric, losses)


def epoch_in_a_function(context):
    model, optimizer, metric = parts(context)
    step = replica_step(model, optimizer, metric)

    @tf.function
    def train(batches):
        total = 0.0
        for batch in batches:
            total += reduce(context, context.run(step, (batch,)))
        return total

    distributed = context.distribute(dataset())
    return finish(model, optimizer, metric, [float(train(distributed)) for _ in range(2)])


def compiled_step(context):
    """`strategy.run` is called eagerly, with a compiled function."""
    model, optimizer, metric = parts(context)
    step = tf.function(replica_step(model, optimizer, metric))
    losses = [
        float(reduce(context, context.run(step, (batch,))))
        for _ in range(2)
        for batch in context.distribute(dataset())
    ]
    return finish(model, optimizer, metric, losses)


def eager_step(context):
    model, optimizer, metric = parts(context)
    step = replica_step(model, optimizer, metric)
    losses = [
        float(reduce(context, context.run(step, (batch,))))
        for batch in context.distribute(dataset())
    ]
    return finish(model, optimizer, metric, losses)


def unknown_length(context):
    """Data sets whose end nobody knows beforehand, in `fit` and with an iterator."""
    model, optimizer, metric = parts(context)
    model.compile(optimizer, "mse")
    filtered = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: x[0] > -0.5).batch(7)
    results = case_table.fit(model, filtered, epochs=2, validation_data=filtered)
    results["predict"] = model.predict(filtered, verbose=0)
    step = replica_step(model, optimizer, metric)

    @tf.function
    def train(iterator):
        return reduce(context, context.run(step, (next(iterator),)))

    losses = []
    iterator = iter(context.distribute(filtered))
    try:
        while True:
            losses.append(float(train(iterator)))
    except tf.errors.OutOfRangeError:
        pass
    return {**results, **finish(model, optimizer, metric, losses)}


CASES = {
    function.__name__: function
    for function in (
        step_in_a_function,
        epoch_in_a_function,
        compiled_step,
        eager_step,
        unknown_length,
    )
}

if __name__ == "__main__":
    case_table.main(CASES)
