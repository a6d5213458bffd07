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

    @tf.function
    def two(batch):
        return 2.0 + 0.0 * tf.reduce_sum(batch[0])

    losses, means = [], []
    for _ in range(2):
        for batch in context.distribute(dataset()):
            losses.append(float(reduce(context, context.run(step, (batch,)))))
            mean = context.run(two, (batch,))
            if context.strategy:  # Of the ranks that have examples.
                mean = context.strategy.reduce("MEAN", mean, axis=None)
            means.append(float(mean))
    return {**finish(model, optimizer, metric, losses), "means": means}


def traces_differ(context):
    """Only some ranks have a smaller last batch, and trace the step again for it."""
    model, optimizer, metric = parts(context)
    plain = replica_step(model, optimizer, metric)
    rows = set()

    def step(batch):
        rows.add(batch[0].shape[0])  # Known, as a step that draws noise wants it.
        return plain((batch[0] + tf.zeros([batch[0].shape[0], 4]), batch[1]))

    compiled = tf.function(step)
    train = tf.function(lambda batch: context.run(step, (batch,)))
    losses = []
    for run in (lambda batch: context.run(compiled, (batch,)), train):
        for _ in range(3):
            for batch in context.distribute(dataset(38)):
                losses.append(float(reduce(context, run(batch))))
    if context.strategy:
        assert rows == ({3, 2}, {3}, {4, 3})[context.strategy.rank], rows
    return finish(model, optimizer, metric, losses)


def aggregations(context):
    """Variables of a script that say what becomes of the ranks' writes."""
    kinds = tf.VariableAggregation
    with context.scope():
        seen = tf.Variable(0, dtype=tf.int64, trainable=False, aggregation=kinds.SUM)
        first = tf.Variable(0.0, trainable=False, aggregation=kinds.ONLY_FIRST_REPLICA)
        total = tf.Variable(0.0, trainable=False, aggregation=kinds.SUM)

    def step(batch):
        seen.assign_add(tf.shape(batch[0], tf.int64)[0])
        first.assign(batch[0][0, 0])
        total.assign(tf.reduce_sum(batch[0]))

    results = []
    compiled = tf.function(lambda batch: context.run(step, (batch,)))
    for run in (compiled, lambda batch: context.run(step, (batch,))):
        for batch in context.distribute(dataset(38)):
            run(batch)
            results.append([float(seen), float(first), float(total)])
    return {"values": results}


def eager_step(context):
    model, optimizer, metric = parts(context)
    step = replica_step(model, optimizer, metric)
    with context.scope():
        of_this_step = keras.metrics.MeanAbsoluteError()

    def step_with_a_reset(batch):
        of_this_step.reset_state()
        of_this_step.update_state(batch[1], model(batch[0]))
        return step(batch)

    losses, errors = [], []
    for batch in context.distribute(dataset()):
        losses.append(float(reduce(context, context.run(step_with_a_reset, (batch,)))))
        errors.append(float(of_this_step.result()))
    return {**finish(model, optimizer, metric, losses), "errors": errors}


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
        traces_differ,
        aggregations,
        eager_step,
        unknown_length,
    )
}

if __name__ == "__main__":
    case_table.main(CASES)
