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


def functions_of_functions(context):
    """What a step does is in a function of its own, which is traced once for several steps."""
    model, optimizer, metric = parts(context)
    with context.scope():
        mean = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN)
    plain = replica_step(model, optimizer, metric)

    @tf.function(reduce_retracing=True)
    def note(batch):
        if tf.reduce_sum(batch[0]) > -1e9:
            mean.assign(tf.reduce_mean(batch[0]))

    @tf.function(reduce_retracing=True)
    def step(batch):
        note(batch)
        return plain(batch)

    @tf.function
    def train(batch, kind):
        del kind  # Each has a graph of its own.
        return reduce(context, context.run(step, (batch,)))

    @tf.function
    def train_in_a_branch(batch, kind):
        del kind
        if tf.shape(batch[1])[-1] == 1:
            loss = context.run(lambda batch: step(batch), (batch,))
        else:
            loss = 0.0
        return reduce(context, loss)

    def eager(batch, kind):
        del kind
        return reduce(context, context.run(lambda batch: step(batch), (batch,)))

    losses, means = [], []
    for run, kind in ((train, 0), (eager, 0), (train, 1), (train_in_a_branch, 0), (train, 2)):
        for batch in context.distribute(dataset(38)):
            losses.append(float(run(batch, kind)))
            means.append(float(mean))
    return {**finish(model, optimizer, metric, losses), "means": means}


def gradients_of_functions(context):
    """Gradients through functions which exchange values with the other ranks."""
    model, optimizer, metric = parts(context)

    def total_of(predicted):
        """By the sums of all ranks, taken in three ways."""
        each = tf.reduce_sum(tf.sin(predicted))
        if not context.strategy:
            return 3.0 * each
        (one,) = context.strategy.all_reduce([each])
        other = tf.distribute.get_replica_context().all_reduce("sum", each)
        rows = context.strategy.all_gather(tf.sin(predicted))
        return one + other + tf.reduce_sum(rows)

    @tf.function(reduce_retracing=True)
    def loss_of(batch):
        x, y = batch
        predicted = model(x, training=True)
        each = tf.reduce_mean(tf.square(predicted - y - 0.01 * total_of(predicted)), -1)
        return tf.nn.compute_average_loss(each, global_batch_size=BATCH)

    def step(batch):
        with tf.GradientTape() as tape:
            loss = loss_of(batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        metric.update_state(batch[1], model(batch[0]))
        return loss

    @tf.function
    def train(batch, kind):
        del kind  # Each has a graph of its own.
        return reduce(context, context.run(step, (batch,)))

    def eager(batch, kind):
        del kind
        return reduce(context, context.run(step, (batch,)))

    losses = []
    for run, kind in ((train, 0), (eager, 0), (train, 1)):
        for batch in context.distribute(dataset()):
            losses.append(float(run(batch, kind)))
    if context.strategy:
        refuse_in_gradients(context)
    return finish(model, optimizer, metric, losses)


def refuse_in_gradients(context):
    """A collective in the gradients alone of a function cannot be told what belongs to the step."""

    @tf.custom_gradient
    def identity(x):
        return tf.identity(x), lambda upstream: context.strategy.all_reduce(upstream)

    function = tf.function(lambda x: tf.reduce_sum(identity(x)))

    def step(batch):
        with tf.GradientTape() as tape:
            tape.watch(batch[0])
            total = function(batch[0])
        return tape.gradient(total, batch[0])

    def run(batch):
        context.run(step, (batch,))

    for batch in context.distribute(dataset(10)):
        for each in (tf.function(run), run):
            try:
                each(batch)
            except NotImplementedError as error:
                assert "Take the gradients within the `tf.function`" in str(error), error
            else:
                raise AssertionError("nothing was raised")


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
        functions_of_functions,
        gradients_of_functions,
        aggregations,
        eager_step,
        unknown_length,
    )
}

if __name__ == "__main__":
    case_table.main(CASES)
