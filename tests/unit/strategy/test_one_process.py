# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A strategy of one process."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdear
from tfdear.job import job


def test_xla_trains_a_process_alone():
    def losses(**arguments):
        keras.utils.set_random_seed(1)
        inputs = np.random.RandomState(0).randn(12, 4).astype("float32")
        with tfdear.DearStrategy().scope():
            model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1), "mse", **arguments)
        history = model.fit(
            inputs, inputs[:, :1], batch_size=4, shuffle=False, epochs=3, verbose=0
        ).history
        return history["loss"]

    compiled = losses(jit_compile=True)
    assert compiled[-1] < compiled[0]
    np.testing.assert_allclose(compiled, losses(jit_compile=False), rtol=1e-5)


def test_xla_compiles_a_step_of_a_process_alone():
    strategy = tfdear.DearStrategy()

    @tf.function(jit_compile=True)
    def step(value):
        return tf.distribute.get_replica_context().all_reduce("sum", value * 2.0)

    assert float(strategy.run(step, (tf.constant(3.0),))) == 6.0


@pytest.mark.parametrize("made_inside", (True, False))
@pytest.mark.parametrize("kind", ("name", "object", "eager"))
def test_compile_outside_of_the_scope_is_plain_keras(made_inside, kind):
    """Metrics and optimizer too are then made outside."""
    inputs = np.random.RandomState(0).randn(12, 4).astype("float32")
    labels = (inputs[:, :1] > 0).astype("float32")

    def train(scope):
        keras.utils.set_random_seed(1)
        with scope:
            model = keras.Sequential(
                [
                    keras.layers.Input((4,)),
                    keras.layers.Dense(3, kernel_regularizer="l2"),
                    keras.layers.BatchNormalization(),
                    keras.layers.Dense(1, activation="sigmoid"),
                ]
            )
        optimizer = keras.optimizers.AdamW(0.05, use_ema=True) if kind == "object" else "adam"
        arguments = {"run_eagerly": kind == "eager", "jit_compile": False}
        metrics = ["accuracy", keras.metrics.AUC(name="auc")]
        model.compile(optimizer, "binary_crossentropy", metrics=metrics, **arguments)
        history = model.fit(
            inputs, labels, batch_size=4, epochs=3, shuffle=False, verbose=0
        ).history
        history |= model.evaluate(inputs, labels, verbose=0, return_dict=True)
        rows = model.predict(inputs, verbose=0)
        on_batch = model.train_on_batch(inputs, labels)
        return {**history, "rows": rows, "on batch": on_batch, "weights": model.get_weights()}

    strategy = tfdear.DearStrategy()
    expected = train(contextlib.nullcontext())
    found = train(strategy.scope() if made_inside else contextlib.nullcontext())
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        for one, other in zip(
            keras.tree.flatten(found[name]), keras.tree.flatten(value), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("replication", list(tf.distribute.InputReplicationMode))
def test_a_process_has_one_replica_to_feed(replication):
    strategy = tfdear.DearStrategy()
    options = tf.distribute.InputOptions(experimental_replication_mode=replication)

    def rows(context):
        return tf.data.Dataset.range(4).batch(2)

    if replication == tf.distribute.InputReplicationMode.PER_WORKER:
        fed = strategy.distribute_datasets_from_function(rows, options)
        assert [batch.numpy().tolist() for batch in fed] == [[0, 1], [2, 3]]
        return
    with pytest.raises(ValueError, match="PER_REPLICA is not supported by DearStrategy"):
        strategy.distribute_datasets_from_function(rows, options)
    with pytest.raises(ValueError, match="PER_WORKER"):
        strategy.experimental_distribute_dataset(rows(None), options)


def test_it_is_closed_and_created_again():
    losses = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        inputs = np.random.RandomState(0).randn(12, 4).astype("float32")
        with tfdear.DearStrategy() as strategy:
            assert job.current() is strategy._job
            cache = tfdear.data.DataCache(tf.data.Dataset.range(3))
            with strategy.scope():
                model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
                model.compile("sgd", "mse")
            history = model.fit(inputs, inputs[:, :1], batch_size=4, shuffle=False, verbose=0)
            losses.append(history.history["loss"])
        assert job.current() is None
        strategy.close()
        assert np.isfinite(model.get_weights()[0]).all()
        for call in (
            lambda: model.predict(inputs, verbose=0),  # noqa: B023
            lambda: strategy.run(lambda: 1),  # noqa: B023
            lambda: strategy.all_reduce(1.0),  # noqa: B023
            strategy.__enter__,
        ):
            with pytest.raises(tfdear.errors.TfdearError, match="was closed. Create another one"):
                call()
        with pytest.raises(ValueError, match="DataCache was closed"):
            cache.statistics()
    assert losses[0] == losses[1]


def test_an_error_in_a_with_statement_stays_what_it_is():
    with pytest.raises(KeyError, match="mine"):
        with tfdear.DearStrategy() as strategy:
            raise KeyError("mine")
    with pytest.raises(tfdear.errors.TfdearError, match="was closed"):
        strategy.run(lambda: 1)
    # A rank alone has failed nobody.
    with tfdear.DearStrategy() as another:
        assert another.run(lambda: 1) == 1


def test_it_is_not_closed_in_a_step():
    with tfdear.DearStrategy() as strategy:
        for step in (strategy.close, tf.function(strategy.close, autograph=False)):
            with pytest.raises(RuntimeError, match="cannot be closed in a step"):
                strategy.run(step)
        assert strategy.run(lambda: 1) == 1


def test_an_older_one_may_be_closed_later():
    first, second = tfdear.DearStrategy(), tfdear.DearStrategy()
    first.close()
    assert job.current() is second._job
    second.close()
    assert job.current() is None
