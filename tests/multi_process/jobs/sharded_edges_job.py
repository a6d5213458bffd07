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


def summed(context, layer):
    """Without weights but the table's."""
    del context
    total = keras.layers.Lambda(lambda vectors: keras.ops.sum(vectors, (1, 2))[:, None])
    return keras.Sequential([keras.Input((WORDS,), dtype="int32"), layer, total])


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
    dataset = labelled_words()
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


def labelled_words():
    """Batches for loops of one's own."""
    ids = words()
    return tf.data.Dataset.from_tensor_slices((ids, labels(ids))).batch(BATCH)


def two_updates(context, lookups):
    """Steps that update a table twice: with gradients of one lookup, or of one for each."""
    dataset = labelled_words()
    with context.scope():
        layer = table(context)
        layer.build(None)
        variables = layer.trainable_variables
        optimizers = [_optimizers.Adam(0.05), _optimizers.SGD(0.05, momentum=0.9)]
        for optimizer in optimizers:
            optimizer.build(variables)

    def step(x, y):
        for place, optimizer in enumerate(optimizers):
            if place < lookups:
                tape = tf.GradientTape(persistent=True)
                with tape:
                    scores = keras.ops.mean(layer(x), (1, 2))[:, None]
                    losses = [tf.reduce_sum((scores - sign * y) ** 2) / BATCH for sign in (1, -1)]
            optimizer.apply(tape.gradient(losses[place], variables), variables)
        return losses[0]

    @tf.function
    def run(x, y):
        return context.run(step, (x, y))

    for _ in range(2):
        for x, y in context.distribute(dataset):
            run(x, y)
    stored = {"weight/0": variables[0].numpy()}
    for number, optimizer in enumerate(optimizers):
        for place, variable in enumerate(optimizer.variables):
            stored[f"slot/{number}/{place}"] = variable.numpy()
    context.wait_for_ranks()
    return stored


def update_in_a_function(context):
    """A function that updates the table, called by steps which were traced later than it was."""
    dataset = labelled_words()
    with context.scope():
        layer = table(context)
        layer.build(None)
        variables = layer.trainable_variables
        optimizer = _optimizers.Adam(0.05)
        optimizer.build(variables)

    @tf.function(reduce_retracing=True)
    def update(x, y):
        with tf.GradientTape() as tape:
            scores = keras.ops.mean(layer(x), (1, 2))[:, None]
            loss = tf.reduce_sum((scores - y) ** 2) / BATCH
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    def alone(x, y):
        return update(x, y)

    def between_lookups(x, y):
        before = tf.reduce_sum(layer(x))
        update(x, y)
        return before + tf.reduce_sum(layer(x[:, ::-1]))

    def twice(x, y):
        update(x, y)
        return update(x[:, ::-1], -y)

    @tf.function
    def run(x, y, step):
        return context.run(steps[step], (x, y))

    steps = (alone, between_lookups, twice)
    results = []
    for step in range(len(steps)):
        for x, y in context.distribute(dataset):
            result = run(x, y, step)
            if context.strategy:
                result = context.strategy.reduce("SUM", result, axis=None)
            results.append(float(result))
    stored = {"weight/0": variables[0].numpy(), "results": np.array(results)}
    for place, variable in enumerate(optimizer.variables):
        stored[f"slot/{place}"] = variable.numpy()
    context.wait_for_ranks()
    return stored


def of_a_branch(layers, x, number):
    """One table is used by every step, the other one by some."""
    vectors = keras.ops.mean(layers[0](x), 1)
    return vectors + tf.cond(
        number % 3 == 1,
        lambda: keras.ops.mean(layers[1](x) * layers[0](x[:, ::-1]), 1),
        lambda: tf.zeros_like(vectors),
    )


def of_branches(layers, x, number):
    """The whole of a table, or rows of it."""
    vectors = keras.ops.mean(layers[1](x), 1)
    return vectors + tf.cond(
        number % 3 == 1,
        lambda: (
            tf.zeros_like(vectors) + tf.reduce_mean(tf.convert_to_tensor(_weight_of(layers[0])), 0)
        ),
        lambda: keras.ops.mean(layers[0](x), 1),
    )


def _weight_of(layer):
    return layer.trainable_variables[0]


def of_a_function(layers, x, number):
    """A tape around a function that looks up."""
    del number

    @tf.function(reduce_retracing=True)
    def look_up(x):
        return keras.ops.mean(layers[0](x) + layers[1](x[:, ::-1]), 1)

    return look_up(x) * look_up(x[:, 1:])


def of_the_first(layers, x, number):
    """The other table has no part, and gets zeros."""
    del number
    return keras.ops.mean(layers[0](x), 1)


def own_steps(context, vectors_of, is_plain=False, zeros=False, **arguments):
    """A loop of one's own whose steps use two tables."""
    dataset = labelled_words()
    unconnected = tf.UnconnectedGradients.ZERO if zeros else tf.UnconnectedGradients.NONE
    with context.scope():
        if is_plain and context.strategy:
            initializers = [keras.initializers.RandomUniform(-0.5, 0.5, seed=n) for n in (1, 2)]
            make = keras.layers.Embedding
            layers = [make(ROWS, WIDTH, embeddings_initializer=each) for each in initializers]
        else:
            layers = [table(context, seed=number, **arguments) for number in (1, 2)]
        for layer in layers:
            layer.build(None)
        variables = [_weight_of(layer) for layer in layers]
        optimizer = _optimizers.SGD(0.5, momentum=0.9)
        optimizer.build(variables)

    def step(x, y, number):
        with tf.GradientTape() as tape:
            scores = keras.ops.sum(vectors_of(layers, x, number), 1)[:, None]
            loss = tf.reduce_sum((scores - y) ** 2) / BATCH
        values = [variable.value for variable in variables]
        gradients = tape.gradient(loss, values, unconnected_gradients=unconnected)
        optimizer.apply(gradients, variables)

    @tf.function
    def run(x, y, number):
        context.run(functools.partial(step, number=number), (x, y))

    for number, (x, y) in enumerate(context.distribute(dataset)):
        run(x, y, tf.constant(number))
    stored = {f"weight/{place}": variable.numpy() for place, variable in enumerate(variables)}
    stored.update({f"slot/{place}": v.numpy() for place, v in enumerate(optimizer.variables)})
    context.wait_for_ranks()
    return stored


def touched_without_examples(context):
    """Ranks without examples touch no rows, also where gradients are accumulated."""
    first = np.array([[1, 2]] * BATCH + [[3, 4]] * BATCH, "int32")
    last = np.array([[5, 6], [6, 7]], "int32")  # Each is a batch.
    if context.strategy is None:
        return model_of_touched([*np.split(first, 2), *np.split(last, 2)] * 2)
    with context.scope():
        layer = table(context, updates="touched")
        total = keras.layers.Lambda(lambda vectors: keras.ops.sum(vectors, (1, 2)))
        model = keras.Sequential([keras.Input((2,), dtype="int32"), layer, total])
        optimizer = _optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2)
        model.compile(optimizer, lambda _, scores: scores)
        model.optimizer.build(model.trainable_variables)
    slices = tf.data.Dataset.from_tensor_slices
    dataset = slices((first, first[:, :1])).batch(BATCH)
    dataset = dataset.concatenate(slices((last, last[:, :1])).batch(1))
    model.fit(dataset, epochs=2, verbose=0)
    return results(context, model)


def model_of_touched(batches):
    """What momentum leaves that is for touched rows, with a gradient of 1 for each word."""
    values = np.array(keras.initializers.RandomUniform(-0.5, 0.5, seed=0)((ROWS, WIDTH)))
    velocity, sums = np.zeros_like(values), np.zeros_like(values)
    for step, ids in enumerate(batches):
        np.add.at(sums, ids.ravel(), 1 / len(ids))
        if step % 2:
            touched = np.flatnonzero(sums.any(1))
            velocity[touched] = 0.9 * velocity[touched] - 0.1 * sums[touched] / 2
            values[touched] += velocity[touched]
            sums[:] = 0
    slots = (len(batches), 0.1, sums, velocity)
    return {"weight/0": values, **{f"slot/{place}": slot for place, slot in enumerate(slots)}}


def not_decayed():
    """Weight decay from which the table is excluded."""
    optimizer = _optimizers.AdamW(0.05, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["embeddings", "table"])
    return optimizer


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
    "two_updates_of_one_lookup": functools.partial(two_updates, lookups=1),
    "two_updates_of_two_lookups": functools.partial(two_updates, lookups=2),
    "update_in_a_function": update_in_a_function,
    "touched_without_examples": touched_without_examples,
    "of_a_branch": functools.partial(own_steps, vectors_of=of_a_branch),
    "of_a_branch_by_row": functools.partial(own_steps, vectors_of=of_a_branch, partition="row"),
    "of_a_branch_plain": functools.partial(own_steps, vectors_of=of_a_branch, is_plain=True),
    "of_branches": functools.partial(own_steps, vectors_of=of_branches),
    "of_a_function": functools.partial(own_steps, vectors_of=of_a_function),
    "of_a_function_plain": functools.partial(own_steps, vectors_of=of_a_function, is_plain=True),
    "zeros": functools.partial(own_steps, vectors_of=of_the_first, zeros=True),
    "not_decayed": functools.partial(fit, make=not_decayed),
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
    # Of a dense layer each rank has sums of its own until they are complete.
    "accumulation_unfinished": accumulated(
        lambda: _optimizers.Adam(0.05, gradient_accumulation_steps=5), build=summed
    ),
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
