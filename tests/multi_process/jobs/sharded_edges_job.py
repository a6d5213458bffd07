# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains models with sharded tables in all the ways in which Keras trains models.

The reference has whole tables, whose gradients are dense.
"""

from __future__ import annotations

import functools

import case_table
import keras
import numpy as np
import tensorflow as tf
from sharded_parity_job import DenseTable

import tfdear

ROWS, WIDTH, WORDS, BATCH, STEPS = 17, 6, 4, 6, 6
_optimizers = keras.optimizers


class Pooled(keras.layers.Layer):
    """The reference of a combiner: "sum" of ragged ids."""

    def __init__(self, rows, width, embeddings_initializer, **kwargs):
        super().__init__(**kwargs)
        self.table = DenseTable(rows, width, embeddings_initializer)

    def build(self, shape):
        self.table.build(shape)

    def call(self, ids):
        vectors = self.table(ids.flat_values)
        return tf.math.unsorted_segment_sum(vectors, ids.value_rowids(), ids.nrows())


class MaskedTable(DenseTable):
    """The reference of `mask_zero`."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.supports_masking = True

    def compute_mask(self, words, mask=None):
        del mask
        return keras.ops.not_equal(words, 0)


def table(context, rows=ROWS, width=WIDTH, reference=DenseTable, seed=0, **arguments):
    initializer = keras.initializers.RandomUniform(-0.5, 0.5, seed=seed)
    if context.strategy is None or context.whole:
        taken = ("embeddings_regularizer", "embeddings_constraint", "name", "dtype")
        kept = {name: arguments[name] for name in taken if name in arguments}
        return reference(rows, width, embeddings_initializer=initializer, **kept)
    return tfdear.layers.ShardedEmbedding(
        rows, width, embeddings_initializer=initializer, **arguments
    )


def words(rows=ROWS, steps=STEPS, count=WORDS, examples=None, seed=3):
    examples = BATCH * steps if examples is None else examples
    random = np.random.default_rng(seed)
    ids = random.integers(0, rows, (examples, count)).astype("int32")
    ids[:, -1] = ids[:, 0]  # Every example has a word twice.
    return ids


def labels(ids, seed=4):
    return np.random.default_rng(seed).normal(size=(len(ids), 1)).astype("float32")


def dense(seed=7):
    return keras.layers.Dense(1, kernel_initializer=keras.initializers.RandomNormal(seed=seed))


def results(context, model, history=None):
    stored = case_table.weights(model)
    if history is not None:
        stored["history"] = history.history["loss"]
    if getattr(model, "optimizer", None) is not None:
        for place, variable in enumerate(model.optimizer.variables):
            stored[f"slot/{place}"] = keras.ops.convert_to_numpy(variable)
    context.wait_for_ranks()
    return stored


def sequential(context, layer, count=WORDS, dtype="int32"):
    del context
    return keras.Sequential(
        [keras.Input((count,), dtype=dtype), layer, keras.layers.Flatten(), dense()]
    )


def fit(
    context,
    make=lambda: _optimizers.Adam(0.05),
    rows=ROWS,
    width=WIDTH,
    data=None,
    build=sequential,
    epochs=2,
    callbacks=(),
    compiled=None,
    **arguments,
):
    """Fits a model with one table."""
    ids = words(rows) if data is None else data
    with context.scope():
        model = build(context, table(context, rows, width, **arguments))
        model(ids[:1])  # Builds it.
        model.compile(make(), "mse", **(compiled or {}))
        model.optimizer.build(model.trainable_variables)
    dataset = tf.data.Dataset.from_tensor_slices((ids, labels(ids))).batch(BATCH)
    history = model.fit(dataset, epochs=epochs, verbose=0, callbacks=[*callbacks])
    return results(context, model, history)


def no_ids(context):
    """Bags without words: in some examples, on a rank, on all of them."""
    lengths = np.array([2, 0, 3, 0, 0, 1] + [0] * BATCH + [0] * 5 + [4] + [1] * BATCH)
    flat = np.random.default_rng(1).integers(0, ROWS, lengths.sum())
    ids = tf.RaggedTensor.from_row_lengths(flat, lengths)
    with context.scope():
        model = Bag(table(context, reference=Pooled, combiner="sum"))
        model(ids[:3])  # Builds it.
        model.compile(_optimizers.Adam(0.05), "mse")
        model.optimizer.build(model.trainable_variables)
    history = model.fit(
        tf.data.Dataset.from_tensor_slices((ids, labels(lengths))).batch(BATCH), epochs=2, verbose=0
    )
    return results(context, model, history)


class Bag(keras.Model):
    """A subclassed model."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.out = dense()

    def call(self, inputs):
        return self.out(self.layer(inputs))


class Subclassed(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.out = dense()

    def call(self, inputs):
        return self.out(keras.ops.mean(self.layer(inputs), 1))


class MaskedMean(keras.layers.Layer):
    def call(self, vectors, mask=None):
        mask = keras.ops.cast(mask, vectors.dtype)[..., None]
        return keras.ops.sum(vectors * mask, 1) / (keras.ops.sum(mask, 1) + 1.0)


def masked(context, layer):
    del context
    return keras.Sequential([keras.Input((WORDS,), dtype="int32"), layer, MaskedMean(), dense()])


def padding():
    ids = words()
    ids[BATCH : 3 * BATCH] = 0
    ids[:, 2:] = 0
    return ids


def twice(context, layer):
    """One layer for two parts of the words, as an encoder and a decoder that share it."""
    del context
    inputs = keras.Input((WORDS,), dtype="int32")
    first, second = layer(inputs[:, :2]), layer(inputs[:, 1:])
    joined = keras.layers.Concatenate(axis=1)([first, keras.ops.tanh(second)])
    return keras.Model(inputs, dense()(keras.layers.Flatten()(joined)))


class Tied(keras.Model):
    """A table that is looked up and, transposed, gives scores of all words."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.out = dense()

    def call(self, inputs):
        vectors = keras.ops.mean(self.layer(inputs), 1)
        whole = getattr(self.layer, "embeddings", None)
        whole = self.layer.table if whole is None else whole
        scores = keras.ops.matmul(vectors, keras.ops.transpose(whole))
        return self.out(keras.ops.tanh(scores))


def unused(context, layer):
    """The table has no part in the loss."""
    inputs = keras.Input((WORDS,), dtype="int32")
    other = table(context, seed=9, name="other")
    del layer
    kept = keras.layers.Flatten()(other(inputs))
    return keras.Model(inputs, dense()(kept))


def five_tables(context):
    widths = (1, 2, 5, 16, 33)
    columns = {f"feature_{number}": words(5 + 7 * number) for number in range(len(widths))}
    y = labels(columns["feature_0"])
    with context.scope():
        inputs = {name: keras.Input((WORDS,), dtype="int32", name=name) for name in columns}
        parts = []
        for number, (name, width) in enumerate(zip(columns, widths, strict=True)):
            layer = table(
                context,
                5 + 7 * number,
                width,
                seed=number,
                name=f"table_{number}",
                partition=("row", "column")[number % 2],
            )
            parts.append(keras.layers.Flatten()(layer(inputs[name])))
        model = keras.Model(inputs, dense()(keras.layers.Concatenate()(parts)))
        model.compile(_optimizers.Nadam(0.01), "mse")
        model.optimizer.build(model.trainable_variables)
    dataset = tf.data.Dataset.from_tensor_slices((columns, y)).batch(BATCH)
    return results(context, model, model.fit(dataset, epochs=2, verbose=0))


def custom_loop(context, sometimes=False):
    """A loop with `GradientTape`; in every second step a table may have no part."""
    ids = words()
    dataset = tf.data.Dataset.from_tensor_slices((ids, labels(ids))).batch(BATCH)
    with context.scope():
        layers = [table(context, seed=1), table(context, 3 * ROWS, 2, seed=2, partition="row")]
        last = dense()
        optimizer = _optimizers.AdamW(0.05, weight_decay=0.01)
        for layer in layers:
            layer.build(None)
        last.build((None, WIDTH + 2))
        variables = [v for layer in (*layers, last) for v in layer.trainable_variables]
        optimizer.build(variables)

    def step(x, y, both):
        with tf.GradientTape() as tape:
            vectors = keras.ops.mean(layers[0](x), 1)
            more = keras.ops.mean(layers[1](3 * x), 1) if both else keras.ops.zeros((len(x), 2))
            scores = last(keras.ops.concatenate([vectors, more], 1))
            losses = tf.reduce_sum((scores - y) ** 2) / BATCH
        optimizer.apply(tape.gradient(losses, variables), variables)
        return losses

    @tf.function
    def run(x, y, both):
        return context.run(functools.partial(step, both=both), (x, y))

    for number, (x, y) in enumerate(context.distribute(dataset)):
        run(x, y, not sometimes or number % 2 == 0)
    stored = {f"weight/{place}": v.numpy() for place, v in enumerate(variables)}
    stored.update({f"slot/{place}": v.numpy() for place, v in enumerate(optimizer.variables)})
    context.wait_for_ranks()
    return stored


def policy(context, name, make):
    keras.config.set_dtype_policy(name)
    try:
        return fit(context, make)
    finally:
        keras.config.set_dtype_policy("float32")


class Between(keras.callbacks.Callback):
    """Evaluates, predicts and writes weights between steps."""

    def __init__(self, ids):
        super().__init__()
        self.ids = ids
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        del logs
        if batch == 1:
            self.seen.append(self.model.evaluate(self.ids, labels(self.ids), verbose=0))
        elif batch == 2:
            self.seen.append(self.model.predict(self.ids, batch_size=BATCH, verbose=0))
        elif batch == 3:
            self.model.set_weights([value * 0.5 for value in self.model.get_weights()])
        elif batch == 4:
            variable = self.model.trainable_variables[0]
            variable.assign(keras.ops.convert_to_numpy(variable) + 0.25)


def between(context):
    callback = Between(words(seed=8)[:BATCH])
    stored = fit(context, callbacks=[callback])
    for place, seen in enumerate(callback.seen):
        stored[f"seen/{place}"] = seen
    return stored


def second_model(context):
    """Two models, each with an optimizer of its own, take turns on one table."""
    ids = words()
    with context.scope():
        layer = table(context)
        models = [sequential(context, layer), sequential(context, layer)]
        for model, make in zip(models, (_optimizers.Adam, _optimizers.SGD), strict=True):
            model.compile(make(0.05), "mse")
            model.optimizer.build(model.trainable_variables)
    stored = {}
    for step in range(4):
        part = ids[step * BATCH : (step + 1) * BATCH]
        models[step % 2].fit(part, labels(part), BATCH, verbose=0)
        for number, model in enumerate(models):
            stored[f"seen/{step}/{number}"] = model.evaluate(ids, labels(ids), BATCH, verbose=0)
    return {**stored, **results(context, models[0])}


def several_optimizers():
    """Adafactor, which cannot update a table by rows, for the other variables."""
    adam, other = _optimizers.Adam(0.05), _optimizers.Adafactor(0.05)

    def choose(variable):
        return adam if variable.shape == (ROWS, WIDTH) else other

    return _optimizers.MultiOptimizer(choose)


def built_by_fit(context):
    """A subclassed model, whose tables are made when it gets its first batch."""
    ids = words()
    with context.scope():
        model = Subclassed(table(context))
        if context.strategy is None:
            model(ids[:1])
        model.compile(_optimizers.SGD(0.05, momentum=0.9), "mse")
    dataset = tf.data.Dataset.from_tensor_slices((ids, labels(ids))).batch(BATCH)
    return results(context, model, model.fit(dataset, verbose=0))


def chief_reads(context):
    """Rank 0 alone reads right after `fit`; the others leave at once."""
    ids = words()
    with context.scope():
        model = sequential(context, table(context))
        model.compile(_optimizers.Adam(0.05), "mse")
        model.optimizer.build(model.trainable_variables)
    dataset = tf.data.Dataset.from_tensor_slices((ids, labels(ids))).batch(BATCH)
    model.fit(dataset, verbose=0)
    stored = case_table.weights(model) if context.rank == 0 else {}
    KEPT.append(model)  # Until rank 0 has read.
    return stored


KEPT = []


def clipped(**arguments):
    return functools.partial(fit, make=lambda: _optimizers.Adam(0.05, **arguments))


def accumulated(make=None, **arguments):
    make = make or (lambda: _optimizers.Adam(0.05, gradient_accumulation_steps=3))
    return functools.partial(fit, make=make, **arguments)


CASES = {
    "one_row": functools.partial(fit, rows=1),
    "one_row_by_row": functools.partial(fit, rows=1, partition="row"),
    "one_column": functools.partial(fit, width=1),
    "few_columns": functools.partial(fit, width=3, partition="column"),
    "few_rows": functools.partial(fit, rows=3, partition="row"),
    "no_ids": no_ids,
    "padding": functools.partial(
        fit, data=padding(), build=masked, reference=MaskedTable, mask_zero=True
    ),
    "short_last_batch": functools.partial(fit, data=words(examples=BATCH * 3 + 1)),
    "unused": functools.partial(fit, build=unused),
    "twice": functools.partial(fit, build=twice),
    "tied": functools.partial(fit, build=lambda context, layer: Tied(layer)),
    "subclassed": functools.partial(fit, build=lambda context, layer: Subclassed(layer)),
    "five_tables": five_tables,
    "custom_loop": custom_loop,
    "custom_loop_sometimes": functools.partial(custom_loop, sometimes=True),
    "steps_per_execution": functools.partial(fit, compiled={"steps_per_execution": 3}),
    "run_eagerly": functools.partial(fit, compiled={"run_eagerly": True}),
    "loss_scale": functools.partial(
        fit,
        make=lambda: _optimizers.LossScaleOptimizer(
            _optimizers.Adam(0.05), initial_scale=64.0, dynamic_growth_steps=4
        ),
    ),
    "bfloat16": functools.partial(
        policy, name="mixed_bfloat16", make=lambda: _optimizers.SGD(0.05, momentum=0.9)
    ),
    "float16": functools.partial(
        policy, name="mixed_float16", make=lambda: _optimizers.SGD(0.05, momentum=0.9)
    ),
    "clipnorm": clipped(clipnorm=0.05),
    "global_clipnorm": clipped(global_clipnorm=0.1),
    "clipvalue": clipped(clipvalue=0.02),
    "regularizer": functools.partial(fit, embeddings_regularizer=keras.regularizers.L2(0.01)),
    "constraint": functools.partial(fit, embeddings_constraint=keras.constraints.NonNeg()),
    "constraint_average": functools.partial(
        fit,
        make=lambda: _optimizers.SGD(
            0.05, momentum=0.9, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4
        ),
        embeddings_constraint=keras.constraints.NonNeg(),
    ),
    "accumulation": accumulated(),
    "accumulation_by_row": accumulated(partition="row"),
    "accumulation_twice": accumulated(build=twice),
    "accumulation_short_last_batch": accumulated(data=words(examples=BATCH * 5 + 1)),
    # With a dense layer, whose gradients are clipped as sums of all ranks, too.
    "accumulation_clipnorm": accumulated(
        lambda: _optimizers.Adam(0.05, clipnorm=0.05, gradient_accumulation_steps=3),
        build=twice,
    ),
    "accumulation_global_clipnorm": accumulated(
        lambda: _optimizers.SGD(
            0.05, momentum=0.9, global_clipnorm=0.1, gradient_accumulation_steps=3
        ),
        partition="row",
        compiled={"run_eagerly": True},
    ),
    "accumulation_clipvalue": accumulated(
        lambda: _optimizers.LossScaleOptimizer(
            _optimizers.SGD(0.05, clipvalue=0.02, gradient_accumulation_steps=2),
            initial_scale=64.0,
        ),
    ),
    "accumulation_average": accumulated(
        lambda: _optimizers.AdamW(
            0.05, weight_decay=0.01, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.9
        )
    ),
    "built_by_fit": built_by_fit,
    "second_model": second_model,
    "float_ids": functools.partial(
        fit, data=words() + np.float32(0.25), build=functools.partial(sequential, dtype="float32")
    ),
    "between": between,
    "chief_reads": chief_reads,
}

if hasattr(_optimizers, "MultiOptimizer"):  # Not in older versions of Keras.
    CASES["several_optimizers"] = functools.partial(fit, make=several_optimizers)

# What a rank does with its own gradient before it is summed, or in half precision: here the
# reference is a table of which every rank has the whole.
OF_EACH_RANK = ("bfloat16", "float16", "clipnorm", "global_clipnorm", "clipvalue")


def with_whole_tables(context, case):
    context.whole = True
    try:
        return case(context)
    finally:
        context.whole = False


CASES.update(
    {
        f"{name}_whole": functools.partial(with_whole_tables, case=CASES[name])
        for name in OF_EACH_RANK
    }
)

if __name__ == "__main__":
    case_table.Context.whole = False
    case_table.main(CASES)
