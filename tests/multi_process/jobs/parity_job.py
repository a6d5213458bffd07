# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trainings that must come out as in plain Keras, whatever the number of ranks."""

import functools

import case_table
import keras
import numpy as np
import tensorflow as tf

import tfdear

# 81 examples in batches of 16: no batch divides by 3, and the last one has a single example, so
# that all ranks but one have none.
TRAIN = case_table.images(81)
VALIDATION = case_table.images(23, seed=1)
WORDS = 40
TABLE = keras.initializers.RandomUniform(-0.05, 0.05, seed=11)

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-3),
    "adamw": lambda: keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(2e-3, 15), weight_decay=1e-2
    ),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-3),
    "adagrad": lambda: keras.optimizers.Adagrad(1e-2),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "adamax": lambda: keras.optimizers.Adamax(1e-3),
    "nadam": lambda: keras.optimizers.Nadam(1e-3),
    "ftrl": lambda: keras.optimizers.Ftrl(1e-2, l1_regularization_strength=1e-3),
    "lion": lambda: keras.optimizers.Lion(1e-4),
    "lamb": lambda: keras.optimizers.Lamb(1e-3),
    "adafactor": lambda: keras.optimizers.Adafactor(1e-3),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(1e-3), initial_scale=64.0, dynamic_growth_steps=4
    ),
    "lars": lambda: tfdear.optimizers.LARS(1.0, weight_decay=1e-3, nesterov=True),
    "layer_adaptive_moments": lambda: tfdear.optimizers.LAMB(1e-3, weight_decay=1e-2),
}
if case_table.MUON_WORKS:
    OPTIMIZERS["muon"] = lambda: keras.optimizers.Muon(1e-3)


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


class DenseTable(keras.layers.Layer):
    """An embedding whose gradient is a dense tensor: the rows of a word are summed."""

    def build(self, input_shape):
        self.table = self.add_weight(shape=(WORDS, 3), initializer=TABLE, name="embeddings")

    def call(self, words):
        return keras.ops.matmul(keras.ops.one_hot(words, WORDS), self.table)


def pictures_and_words(context, make_optimizer):
    """Dense and sparse gradients: words that occur on several ranks, several times on one, never.

    Keras hands the rows of a word to the optimizer one by one; those that square gradients then
    square each row of its own. The reference is a dense gradient, as on Keras's other backends.
    """
    words = np.random.RandomState(2).randint(0, WORDS - 10, (81, 5))
    with context.scope():
        # Muon leaves embeddings to Adam, and knows them by their names.
        if context.strategy:
            table = keras.layers.Embedding(WORDS, 3, embeddings_initializer=TABLE, name="embedding")
        else:
            table = DenseTable(name="embedding")
        picture, text = keras.Input((6, 6, 1)), keras.Input((5,), dtype="int32")
        seen = keras.layers.Flatten()(keras.layers.Conv2D(4, 3, activation="relu")(picture))
        read = keras.layers.Flatten()(table(text))
        logits = keras.layers.Dense(3)(keras.layers.Concatenate()([seen, read]))
        model = keras.Model([picture, text], logits)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(make_optimizer(), loss)
    return case_table.fit(model, case_table.batches((TRAIN[0], words), TRAIN[1]), epochs=3)


CASES = {
    name: functools.partial(pictures_and_words, make_optimizer=make)
    for name, make in OPTIMIZERS.items()
}
CASES["whole"] = functools.partial(train, make_optimizer=OPTIMIZERS["sgd"])
CASES["whole_adamw"] = functools.partial(train, make_optimizer=OPTIMIZERS["adamw"])
CASES["normalization"] = functools.partial(
    train, make_optimizer=OPTIMIZERS["sgd"], normalization=True
)
CASES["steps_per_execution"] = functools.partial(
    train, make_optimizer=OPTIMIZERS["sgd"], steps_per_execution=4, data="numpy"
)

if __name__ == "__main__":
    tf.config.experimental.enable_op_determinism()
    case_table.main(CASES)
