# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ranks whose programs differ in what comes when: ordered_job.py KIND."""

import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear

KIND = sys.argv[1]
STRATEGY = tfdear.DearStrategy()
SECOND = STRATEGY.rank == 1
X = np.random.RandomState(0).randn(24, 8).astype("float32")


def two_layers(reverse):
    """Two layers of one shape, made in this order or the other way round."""
    layers = {}
    with STRATEGY.scope():
        for name in ("right", "left") if reverse else ("left", "right"):
            layers[name] = keras.layers.Dense(8, use_bias=False, name=name)
            layers[name].build((None, 8))
    return layers["left"], layers["right"]


def train_step(layers, variables, optimizer, fails):
    @tf.function
    def step(x):
        if fails:
            # Before any gradient: nothing of this step is contributed.
            with tf.control_dependencies([tf.debugging.assert_less(x, 0.0)]):
                x = tf.identity(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layers[1](layers[0](x)) ** 2) / 100
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    return lambda x: STRATEGY.run(step, (x,))


def creation():
    two_layers(reverse=SECOND)


def gradients():
    layers = two_layers(reverse=False)
    variables = [layer.kernel for layer in layers]
    with STRATEGY.scope():
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(variables)
    step = train_step(layers, variables[::-1] if SECOND else variables, optimizer, False)
    for _ in range(3):
        step(tf.constant(X))
    print(layers[0].kernel.numpy().sum())


def given_up():
    layers = two_layers(reverse=False)
    variables = [layer.kernel for layer in layers]
    with STRATEGY.scope():
        optimizer = keras.optimizers.SGD(0.01)
        optimizer.build(variables)
    good, bad = (train_step(layers, variables, optimizer, fails) for fails in (False, True))
    good(tf.constant(X))
    try:
        (bad if SECOND else good)(tf.constant(X + 1))
    except tf.errors.InvalidArgumentError:
        print("caught", flush=True)
    for _ in range(3):
        good(tf.constant(X))
    print(layers[0].kernel.numpy().sum())


def alike():
    """What differs here does no harm: numbers of layers, and how a rank finds out about the end."""
    for _ in range(3 * STRATEGY.rank):
        keras.layers.Dense(2).build((None, 3))
    if SECOND:
        second, first = keras.layers.Dense(8), keras.layers.Dense(8)
    else:
        first, second = keras.layers.Dense(8), keras.layers.Dense(8)
    with STRATEGY.scope():
        inputs = keras.Input((8,))
        model = keras.Model(inputs, second(first(inputs)), name=f"model_of_rank_{STRATEGY.rank}")
        model.compile(keras.optimizers.SGD(0.01), "mse")
    model.fit(X, X, batch_size=8, epochs=2, verbose=0)
    with STRATEGY.scope():
        named = keras.Sequential([keras.layers.Dense(8)], name="monday" if SECOND else "sunday")
        named.compile("adam", "mse")
    named.fit(X, X, batch_size=8, verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices(X).batch(4, drop_remainder=True)

    @tf.function
    def step(iterator):
        def replica_step():
            x = next(iterator)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2) / STRATEGY.num_replicas_in_sync
            gradients = tape.gradient(loss, model.trainable_variables)
            model.optimizer.apply(gradients, model.trainable_variables)
            return loss

        return STRATEGY.run(replica_step)

    for _ in range(5):
        iterator = iter(dataset)
        try:
            while True:
                step(iterator)
        except tf.errors.OutOfRangeError:
            pass
    totals = STRATEGY.all_gather(tf.stack([tf.reduce_sum(w) for w in model.weights])[None])
    np.testing.assert_array_equal(totals[0], totals[1])


{"creation": creation, "gradients": gradients, "given_up": given_up, "alike": alike}[KIND]()
print("reached the end", flush=True)
