# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains models whose tables say, in each step, which ids they were given and expect next."""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear
from tfdear.gradients import next_ids

strategy = tfdear.DearStrategy()
WORDS = np.random.default_rng(5).integers(1, 40, (33, 5))
LABELS = WORDS.mean(1, keepdims=True).astype("float32")
NAMES = np.array(["one", "two", "three", "four"])[WORDS[:, :2] % 4]
SEEN: list[list] = []


class Table(tfdear.layers.ShardedEmbedding):
    """Notes ids, and what they will be next."""

    def look_up(self, ids, common=0):
        if isinstance(ids, tf.Tensor):
            expected = next_ids.next_of(ids)
            rest = [] if expected is None else [expected.ids, expected.present]
            tf.numpy_function(note, [self.name, ids, *rest], tf.int64)
        return super().look_up(ids, common)


def note(name, ids, *expected):
    following = None
    if expected:
        following = np.ravel(expected[0]).tolist() if expected[1] else []
    SEEN.append([name.decode(), np.ravel(ids).tolist(), following])
    return np.int64(0)


def words(array=WORDS, **options):
    return tf.data.Dataset.from_tensor_slices((array, LABELS)).batch(6, **options)


def sequential(*before, dtype="int64", compiled=True, **arguments):
    with strategy.scope():
        model = keras.Sequential(
            [*before, Table(40, 8, name="of_words"), keras.layers.Flatten(), keras.layers.Dense(1)]
        )
        if compiled:
            model.build((None, 5))
            model.compile("sgd", "mse", **arguments)
    return model


def fit(model=None, data=None, **arguments):
    model = sequential() if model is None else model
    model.fit(words() if data is None else data, epochs=2, verbose=0, **arguments)


def fit_arrays():
    with strategy.scope():
        inputs = {
            "words": keras.Input((5,), dtype="int32", name="words"),
            "names": keras.Input((2,), dtype="string", name="names"),
        }
        number_of = keras.layers.StringLookup(vocabulary=["one", "two", "three"])
        layers = [Table(40, 8, name="of_words"), Table(5, 4, name="of_names")]
        vectors = [
            layers[0](keras.layers.Lambda(lambda x: tf.where(x > 20, x - 20, x))(inputs["words"])),
            layers[1](number_of(inputs["names"])),
        ]
        pooled = keras.layers.Concatenate()([keras.ops.mean(vector, 1) for vector in vectors])
        model = keras.Model(inputs, keras.layers.Dense(1)(pooled))
        model.compile("adam", "mse")
    given = {"words": WORDS, "names": NAMES}
    given = {name: tf.constant(value) for name, value in given.items()}
    model.fit(given, tf.constant(LABELS), batch_size=6, epochs=2, verbose=0)
    model.evaluate(given, tf.constant(LABELS), batch_size=6, verbose=0)


class Inner(keras.Model):
    """Is built by its first batch; looks up its ragged words without the last."""

    def __init__(self):
        super().__init__()
        self.table = Table(40, 8, combiner="sum", name="of_words")
        self.head = keras.layers.Dense(1)

    def call(self, ids):
        return self.head(self.table(ids[:, :-1]))


def fit_ragged():
    ragged = tf.RaggedTensor.from_tensor(WORDS).with_row_splits_dtype(tf.int64)
    ragged = tf.ragged.boolean_mask(ragged, WORDS % 3 > 0)
    with strategy.scope():
        model = Inner()
        model.compile("sgd", "mse")
    fit(model, words(ragged))


def at_random():
    drawn = keras.layers.Lambda(lambda x: x + tf.random.uniform([], 0, 1, tf.int64))
    fit(sequential(drawn))


def generator():
    def batches():
        for begin in range(0, 30, 6):
            yield WORDS[begin : begin + 6], LABELS[begin : begin + 6]

    model = sequential()
    model.fit(batches(), epochs=1, verbose=0)


def loss_of(model, inputs, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(inputs, training=True) - labels) ** 2)
    variables = model.trainable_variables
    model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    return loss


def loop_reading():
    model = sequential()

    @tf.function
    def step(iterator):
        def work(batch):
            return loss_of(model, *batch)

        return strategy.run(work, args=(next(iterator),))

    iterator = iter(strategy.experimental_distribute_dataset(words()))
    for _ in range(6):
        step(iterator)


def loop_many_steps():
    model = sequential()

    @tf.function
    def epoch(iterator):
        for _ in tf.range(6):
            strategy.run(lambda batch: loss_of(model, *batch), args=(next(iterator),))

    epoch(iter(strategy.experimental_distribute_dataset(words())))


def loop_arguments():
    model = sequential()

    @tf.function(reduce_retracing=True)
    def step(batch, scale):
        del scale
        return strategy.run(lambda inputs, labels: loss_of(model, inputs, labels), args=batch)

    for batch in strategy.experimental_distribute_dataset(words(drop_remainder=True)):
        step(batch, tf.constant(1.0))


def loop_of_functions():
    model = sequential()

    @tf.function
    def step(inputs, labels):
        return loss_of(model, inputs, labels)

    for batch in strategy.experimental_distribute_dataset(words(drop_remainder=True)):
        strategy.run(step, args=batch)


def loop_over_other_data():
    model = sequential()

    @tf.function
    def step(inputs, labels):
        return loss_of(model, inputs, labels)

    for inputs, labels in strategy.experimental_distribute_dataset(words(drop_remainder=True)):
        strategy.run(step, args=(inputs[::-1] % 7, labels))


def own_data():
    def make_batches(context):
        own = slice(context.input_pipeline_id, None, context.num_input_pipelines)
        rows = tf.data.Dataset.from_tensor_slices((WORDS[own], LABELS[own]))
        return rows.take(12 - 5 * context.input_pipeline_id).batch(3)

    fit(sequential(), strategy.distribute_datasets_from_function(make_batches))


CASES = {
    "fit": fit,
    "fit_many_steps": lambda: fit(sequential(steps_per_execution=4)),
    "fit_arrays": fit_arrays,
    "fit_ragged": fit_ragged,
    "at_random": at_random,
    "generator": generator,
    "loop_reading": loop_reading,
    "loop_many_steps": loop_many_steps,
    "loop_arguments": loop_arguments,
    "loop_of_functions": loop_of_functions,
    "loop_over_other_data": loop_over_other_data,
    "own_data": own_data,
}

if __name__ == "__main__":
    results = {}
    for case in sys.argv[2:] or CASES:
        keras.utils.set_random_seed(1)
        SEEN.clear()
        CASES[case]()
        strategy.barrier()
        results[case] = list(SEEN)
    with open(f"{sys.argv[1]}/rank_{strategy.rank}.json", "w", encoding="utf-8") as file:
        json.dump(results, file)
