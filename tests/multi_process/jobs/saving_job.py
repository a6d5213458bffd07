# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Saves a trained model in every way; loads in the scope what can be loaded there."""

import case_table
import keras
import numpy as np
import tensorflow as tf

import tfdear

X = np.random.RandomState(0).randn(24, 4).astype("float32")
Y = X.sum(1, keepdims=True)


def trained(context):
    with context.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((4,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(0.01), keras.losses.MeanSquaredError())
    model.fit(X, Y, batch_size=6, epochs=2, verbose=0)
    return model


def saving(context):
    """On all ranks to one path, and on the chief alone to another."""
    model = trained(context)
    directory = context.directory
    expected = model.predict(X, verbose=0)
    for suffix in ("keras", "h5"):
        model.save(directory / f"all.{suffix}")
    model.save_weights(directory / "all.weights.h5")
    model.export(str(directory / "exported_all"), verbose=False)
    if context.rank == 0:
        model.save(directory / "chief.keras")
        model.export(str(directory / "exported_chief"), verbose=False)
    context.strategy.barrier()
    for name in ("all.keras", "all.h5", "chief.keras"):
        with context.scope():
            loaded = keras.models.load_model(directory / name)
        np.testing.assert_array_equal(loaded.predict(X, verbose=0), expected)
        for old, new in zip(model.get_weights(), loaded.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)
        if name != "all.h5":
            # Goes on as the original does: the optimizer's state came along.
            with context.scope():
                original = keras.models.load_model(directory / name)
            one = loaded.fit(X, Y, batch_size=6, epochs=1, shuffle=False, verbose=0)
            two = original.fit(X, Y, batch_size=6, epochs=1, shuffle=False, verbose=0)
            np.testing.assert_array_equal(one.history["loss"], two.history["loss"])
    with context.scope():
        fresh = trained(context)
        fresh.load_weights(directory / "all.weights.h5")
    np.testing.assert_array_equal(fresh.predict(X, verbose=0), expected)
    return {"x": X, "expected": expected}


def custom_loop(context):
    """`tf.train.Checkpoint` in a loop of one's own: what is restored goes on alike."""
    strategy = context.strategy
    with context.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.05)
        mean = keras.metrics.Mean()
        optimizer.build(model.trainable_variables)
    dataset = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(7)
    )

    @tf.function
    def step(batch):
        def replica(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                each = tf.reduce_mean(tf.square(model(x, training=True) - y), -1)
                loss = tf.nn.compute_average_loss(each, global_batch_size=7)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            mean.update_state(each)
            return loss

        return strategy.reduce("SUM", strategy.run(replica, args=(batch,)), axis=None)

    def epoch():
        return [float(step(batch)) for batch in dataset]

    losses = epoch()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    directory = context.directory / f"checkpoints_{context.rank}"
    manager = tf.train.CheckpointManager(checkpoint, str(directory), max_to_keep=2)
    manager.save()
    first = epoch()
    after_first = case_table.digest([*model.variables, *optimizer.variables])
    checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    second = epoch()
    np.testing.assert_array_equal(first, second)
    assert after_first == case_table.digest([*model.variables, *optimizer.variables])

    class Inference(tf.Module):
        def __init__(self):
            super().__init__()
            self.weights = [variable.value for variable in model.variables]

        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32)])
        def infer(self, x):
            return model(x)

    if context.rank == 0:
        tf.saved_model.save(Inference(), str(context.directory / "module"))
    strategy.barrier()
    return {"losses": losses + first, "mean": float(mean.result()), "expected": model(X)}


def tables(context):
    """Exports of a model with tables of which every rank holds a part: whole ones."""
    make = tfdear.layers.ShardedEmbedding
    ids = np.random.RandomState(0).randint(0, 30, (24, 5)).astype("int32")
    with context.scope():
        words = keras.Input((5,), dtype="int32")
        vectors = make(30, 6, partition="column", mask_zero=True)(words)
        bags = make(30, 7, partition="row", combiner="mean")(words)
        flat = keras.layers.Flatten()(vectors)
        scores = keras.layers.Dense(1)(keras.layers.Concatenate()([flat, bags]))
        model = keras.Model(words, scores)
        model.compile(keras.optimizers.Adam(0.05), "mse")
    model.fit(ids, Y, batch_size=6, epochs=2, verbose=0)
    before = model.predict(ids, verbose=0)
    model.export(str(context.directory / "tables_all"), verbose=False)
    if context.rank == 0:
        model.export(str(context.directory / "tables_chief"), verbose=False)
    np.testing.assert_array_equal(model.predict(ids, verbose=0), before)
    history = model.fit(ids, Y, batch_size=6, verbose=0).history
    context.strategy.barrier()
    return {"ids": ids, "expected": before, "loss": history["loss"]}


CASES = {function.__name__: function for function in (saving, custom_loop, tables)}

if __name__ == "__main__":
    case_table.main(CASES)
