# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trainings that must come out as in plain Keras, whatever the number of ranks."""

import functools

import case_table
import keras
import numpy as np
import tensorflow as tf

# 81 examples in batches of 16: no batch divides by 3, and the last one has a single example, so
# that all ranks but one have none.
TRAIN = case_table.images(81)
VALIDATION = case_table.images(23, seed=1)

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-3),
    "adamw": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(2e-3, 15), weight_decay=1e-2
    ),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-3),
    "lamb": lambda: keras.optimizers.Lamb(1e-3),
    "lion": lambda: keras.optimizers.Lion(1e-4),
    "adafactor": lambda: keras.optimizers.Adafactor(1e-3),
}


def build(optimizer, normalization=False, **arguments):
    layers = [keras.layers.Input((6, 6, 1)), keras.layers.Conv2D(4, 3, activation="relu")]
    if normalization:
        layers.append(keras.layers.BatchNormalization(synchronized=True))
    layers += [keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy", keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="ce")]
    model.compile(optimizer, loss, metrics=metrics, **arguments)
    return model


def train(context, make_optimizer, *, data="dataset", **arguments):
    with context.scope():
        model = build(make_optimizer(), **arguments)
    if data == "numpy":
        given, more = TRAIN, {"batch_size": 16, "shuffle": False}
    else:
        given, more = (case_table.batches(*TRAIN),), {}
    results = case_table.fit(
        model, *given, epochs=3, validation_data=VALIDATION, validation_batch_size=10, **more
    )
    evaluated = model.evaluate(*VALIDATION, batch_size=10, verbose=0, return_dict=True)
    results.update({f"evaluate/{name}": value for name, value in evaluated.items()})
    results["predict"] = model.predict(VALIDATION[0], batch_size=10, verbose=0)
    return results


def embedding(context):
    """Sparse gradients, with words that occur on several ranks and several times on one."""
    random = np.random.RandomState(2)
    words = random.randint(0, 30, (81, 5))
    y = (words.sum(1) % 7).astype("float32")
    with context.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((5,), dtype="int32"),
                keras.layers.Embedding(40, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", metrics=["mae"])
    return case_table.fit(model, case_table.batches(words, y), epochs=3)


def embedding_adam(context):
    """As above, without a word that occurs twice: plain Keras's Adam squares the gradients of equal
    rows one by one, where tfdear adds the rows up first."""
    words = np.random.RandomState(2).permutation(90)[:81, np.newaxis]
    y = (words.sum(1) % 7).astype("float32")
    with context.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((1,), dtype="int32"),
                keras.layers.Embedding(90, 4),
                keras.layers.GlobalAveragePooling1D(),
                keras.layers.Dense(1),
            ]
        )
        model.compile(keras.optimizers.Adam(1e-2), "mse")
    return case_table.fit(model, case_table.batches(words, y), epochs=3)


CASES = {name: functools.partial(train, make_optimizer=make) for name, make in OPTIMIZERS.items()}
CASES["normalization"] = functools.partial(
    train, make_optimizer=OPTIMIZERS["sgd"], normalization=True
)
CASES["steps_per_execution"] = functools.partial(
    train, make_optimizer=OPTIMIZERS["sgd"], steps_per_execution=4, data="numpy"
)
CASES["embedding"] = embedding
CASES["embedding_adam"] = embedding_adam

if __name__ == "__main__":
    tf.config.experimental.enable_op_determinism()
    case_table.main(CASES)
