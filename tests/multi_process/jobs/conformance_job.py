# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What Keras checks of a distribution strategy, checked inside the ranks of a job.

Where Keras's cases look at the values of several replicas in one process, each rank looks at its
own and the ranks' values are compared by the test.
"""

import case_table
import keras
import numpy as np
import tensorflow as tf

from tfdear.gradients import variable as variable_module

assert_allclose = np.testing.assert_allclose


def value_of(variable):
    return keras.ops.convert_to_numpy(variable)


def variables(context):
    """Keras variables made in the scope hold the strategy's own, with what they were asked for."""
    x = np.random.RandomState(context.rank).random_sample((4, 4))
    with context.scope():
        dense = keras.layers.Dense(2)
        dense.build([4, 2])
        plain = keras.Variable(x, dtype="float32")
        summed = keras.Variable(x, dtype="float32", aggregation="sum")
        on_read = keras.Variable(x, dtype="float32", synchronization="on_read")
    for variable in (dense.kernel, dense.bias):
        assert isinstance(variable, keras.Variable)
        assert isinstance(variable.value, variable_module.DearVariable)
        assert context.strategy.extended.variable_created_in_scope(variable.value)
    assert (plain.aggregation, plain.value.aggregation) == ("none", tf.VariableAggregation.NONE)
    assert (summed.aggregation, summed.value.aggregation) == ("sum", tf.VariableAggregation.SUM)
    assert plain.synchronization == "auto"
    assert plain.value.synchronization in (
        tf.VariableSynchronization.AUTO,
        tf.VariableSynchronization.ON_WRITE,
    )
    assert on_read.synchronization == "on_read"
    assert on_read.value.synchronization == tf.VariableSynchronization.ON_READ
    # Every rank drew other numbers; the variable has those of rank 0.
    return {"plain": value_of(plain), "kernel": value_of(dense.kernel)}


def run(context):
    """A replica's function gets the values of its replica."""
    with context.scope():
        inputs = keras.Input([4])
        model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    mine = context.strategy.experimental_distribute_values_from_function(
        lambda place: tf.fill([8, 4], float(place.replica_id_in_sync_group))
    )
    result = context.strategy.run(tf.function(lambda data: model(data)), args=(mine,))
    (local,) = context.strategy.experimental_local_results(result)
    assert local.shape == [8, 2]
    kernel = value_of(model.layers[1].kernel)
    assert_allclose(local, np.full((8, 4), context.rank) @ kernel, rtol=1e-5, atol=1e-6)
    ids = context.strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    assert int(ids) == context.rank
    total = context.strategy.reduce("SUM", tf.constant(float(context.rank + 1)), axis=None)
    assert float(total) == sum(range(1, context.world_size + 1))
    mean = context.strategy.reduce("MEAN", tf.constant(float(context.rank)), axis=None)
    assert_allclose(mean, (context.world_size - 1) / 2)
    return {}


def assigning_in_a_replica(context):
    """Writes of replicas are put together as the variable's aggregation says."""
    with context.scope():
        summed = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        averaged = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.MEAN)
        metric = keras.metrics.Mean()

    @tf.function
    def step():
        def replica():
            rank = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
            summed.assign_add(rank + 1.0)
            averaged.assign(2.0 * rank)
            metric.update_state([rank, rank])

        context.strategy.run(replica)

    step()
    step()
    size = context.world_size
    assert_allclose(summed.numpy(), 2 * sum(range(1, size + 1)))
    assert_allclose(averaged.numpy(), size - 1.0)
    assert_allclose(metric.result(), (size - 1) / 2)
    assert_allclose(metric.count.numpy(), 4 * size)
    metric.reset_state()
    assert metric.count.numpy() == 0
    return {}


def epoch_iterator(context):
    """A global batch of 16 is cut into the ranks' parts, the partial one at the end too."""
    from keras.src.backend.tensorflow.trainer import TFEpochIterator

    x = np.arange(100.0)[:, None] * np.ones((1, 16))
    iterator = TFEpochIterator(
        x=x,
        y=x[:, :4],
        sample_weight=x[:, 0],
        batch_size=16,
        shuffle=True,
        distribute_strategy=context.strategy,
    )
    steps, seen = [], []
    for step, *_, data in iterator:  # With the last step of the execution, in newer Keras.
        steps.append(step)
        inputs, targets, weights = next(data)
        assert inputs.shape[0] == targets.shape[0] == weights.shape[0]
        assert inputs.shape[1:] == [16] and targets.shape[1:] == [4]
        rows = 16 if step < 6 else 4
        begin, end = (
            rank * rows // context.world_size for rank in (context.rank, context.rank + 1)
        )
        assert inputs.shape[0] == end - begin
        seen.extend(inputs[:, 0].numpy())
        assert_allclose(inputs[:, 0], weights)
    assert steps == list(range(7))
    counts = [int(n) for n in context.strategy.all_gather(tf.constant([len(seen)]))]
    everything = context.strategy.all_gather(tf.constant(seen, tf.float32)).numpy()
    assert sum(counts) == 100
    assert sorted(everything) == list(range(100))
    return {}


def seed_generator(context):
    """Ranks draw from streams of their own, and the counter moves alike."""
    with context.scope():
        generator = keras.random.SeedGenerator(42)
    state = context.strategy.run(lambda: generator.state.value)
    assert int(state[1]) == 0
    drawn = context.strategy.run(lambda: keras.random.uniform((3,), seed=generator))
    return {"own state": int(state[0]), "own drawn": drawn.numpy()}


def regularizer(context):
    """The regularization is that of one process, although every rank adds it to its loss."""
    x, y = np.ones((12, 1), "float32"), np.zeros((12, 1), "float32")

    def train(scope):
        with scope:
            inputs = keras.Input((1,))
            layer = keras.layers.Dense(
                1,
                use_bias=False,
                kernel_initializer=keras.initializers.Constant(1),
                kernel_regularizer=keras.regularizers.L1L2(l1=0.01, l2=0.01),
            )
            model = keras.Model(inputs, layer(inputs))
            model.compile(loss="mse", optimizer="sgd")
        history = model.fit(x, y, batch_size=12, epochs=1, verbose=0)
        return history.history["loss"], value_of(layer.kernel)

    loss, kernel = train(context.scope())
    # By hand: mean(1) + 0.01 + 0.01; gradient 2 + 0.01 + 0.02, rate 0.01.
    assert_allclose(loss, [1.02], rtol=1e-6)
    assert_allclose(kernel, [[1 - 0.01 * 2.03]], rtol=1e-6)
    return {"loss": loss, "kernel": kernel}


def apply(context, optimizer, gradients, targets):
    context.strategy.run(
        lambda: optimizer.apply_gradients(list(zip(gradients, targets, strict=True)))
    )


def optimizer_single_step(context):
    """Gradients of the replicas are summed."""
    size = context.world_size
    with context.scope():
        optimizer = keras.optimizers.SGD(0.5, momentum=0.06)
        variable = tf.Variable([1.0, 2.0, 3.0, 4.0])
        given = tf.constant([1.0, 6.0, 7.0, 2.0])
        apply(context, optimizer, [given], [variable])
        assert_allclose(variable.numpy(), [1, 2, 3, 4] - 0.5 * size * given.numpy(), rtol=1e-5)
    return {"variable": variable.numpy()}


def optimizer_weight_decay(context):
    with context.scope():
        zero = tf.zeros(())
        first = keras.Variable(2.0)
        excluded = keras.Variable(3.0, name="exclude")
        listed = keras.Variable(4.0)
        apply(context, keras.optimizers.SGD(1.0, weight_decay=0.004), [zero], [first])
        by_name = keras.optimizers.SGD(1.0, weight_decay=0.004)
        by_name.exclude_from_weight_decay(var_names=["exclude"])
        apply(context, by_name, [zero, zero], [first, excluded])
        by_list = keras.optimizers.SGD(1.0, weight_decay=0.004)
        by_list.exclude_from_weight_decay(var_list=[listed])
        apply(context, by_list, [zero, zero], [first, listed])
    assert_allclose(value_of(first), 2 * 0.996**3, rtol=1e-6)
    assert (value_of(excluded), value_of(listed)) == (3.0, 4.0)
    return {}


def optimizer_nesterov(context):
    """A course that was worked out in numpy, with the gradients summed over the replicas."""
    with context.scope():
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True)
        x = keras.Variable(np.ones([10]))
    expected, velocity = np.ones(10), np.zeros(10)
    for step in range(6):
        gradient = np.arange(0.1, 1.1, 0.1) if step == 0 else np.full(10, 0.01)
        tensor = tf.constant(gradient, tf.float32)
        apply(context, optimizer, [tensor], [x])
        velocity = 0.9 * velocity - 0.01 * context.world_size * gradient
        expected = expected + 0.9 * velocity - 0.01 * context.world_size * gradient
        assert_allclose(value_of(x), expected, rtol=1e-5)
    return {"x": value_of(x)}


def optimizer_clipping(context):
    with context.scope():
        gradient = [tf.constant([100.0, 100.0])]
        by_norm = keras.optimizers.SGD(clipnorm=1)._clip_gradients(gradient)
        by_value = keras.optimizers.SGD(clipvalue=1)._clip_gradients(gradient)
    assert_allclose(by_norm[0], [2**0.5 / 2] * 2, rtol=1e-6)
    assert_allclose(by_value[0], [1.0, 1.0])
    return {}


def optimizer_moving_average(context):
    """The average starts at the first step's value and replaces the variable at the third."""
    size = context.world_size
    with context.scope():
        variable = keras.Variable([[30.0, 40.0], [50.0, 60.0]])
        optimizer = keras.optimizers.SGD(
            1.0, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=3
        )
        start = value_of(variable).copy()
        gradient = tf.ones((2, 2))
        average = None
        for step in (1, 2, 3):
            apply(context, optimizer, [gradient], [variable])
            expected = start - size * step
            average = expected if step == 1 else 0.9 * average + 0.1 * expected
            got = value_of(optimizer._model_variables_moving_average[0])
            assert_allclose(got, average, rtol=1e-6)
            assert_allclose(value_of(variable), average if step == 3 else expected, rtol=1e-6)
    return {}


def optimizer_accumulation(context):
    """Two calls only accumulate, the third applies the mean of three."""
    size = context.world_size
    with context.scope():
        start = np.array([[1.0, 2.0], [3.0, 4.0]], "float32")
        variable = keras.Variable(start)
        gradient = tf.constant([[1.0, 1.0], [2.0, 2.0]])
        optimizer = keras.optimizers.SGD(1.0, gradient_accumulation_steps=3)
        for calls in (1, 2, 3):
            apply(context, optimizer, [gradient], [variable])
            applied = calls == 3
            expected = start - size * gradient.numpy() if applied else start
            assert_allclose(value_of(variable), expected, rtol=1e-6)
            assert int(value_of(optimizer._iterations)) == calls
            assert int(value_of(optimizer.iterations)) == int(applied)
    return {}


def optimizer_configuration(context):
    with context.scope():
        optimizer = keras.optimizers.SGD(0.5, momentum=0.06, nesterov=True, weight_decay=0.004)
        again = keras.optimizers.SGD.from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()
    return {}


def training(context):
    """From arrays and from a data set, with validation, evaluation and prediction."""
    x, y = np.random.RandomState(0).randn(50, 8), np.random.RandomState(1).randint(0, 3, 50)
    with context.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((8,)),
                keras.layers.Dense(6, activation="relu"),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(3, activation="softmax"),
            ]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    first = model.fit(x, y, batch_size=12, epochs=2, verbose=0, validation_split=0.2)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(50).batch(12)
    second = model.fit(dataset, epochs=1, verbose=0, steps_per_epoch=3)
    evaluated = model.evaluate(dataset, verbose=0)
    predicted = model.predict(x, batch_size=12, verbose=0)
    assert predicted.shape == (50, 3)
    return {**first.history, **second.history, "evaluated": evaluated, "predicted": predicted}


CASES = {
    function.__name__: function
    for function in (
        variables,
        run,
        assigning_in_a_replica,
        epoch_iterator,
        seed_generator,
        regularizer,
        optimizer_configuration,
        optimizer_single_step,
        optimizer_weight_decay,
        optimizer_nesterov,
        optimizer_clipping,
        optimizer_moving_average,
        optimizer_accumulation,
        training,
    )
}

if __name__ == "__main__":
    case_table.main(CASES)
