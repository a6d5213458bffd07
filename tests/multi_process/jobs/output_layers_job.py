# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Output layers over many classes, and models whose tables are divided afterwards.

output_layers_job.py DIRECTORY [--plain] [--cases CASES]
"""

from __future__ import annotations

import case_table
import keras
import numpy as np
import tensorflow as tf

from tfdear import layers, losses

WORDS, WIDTH, LENGTH, BATCH, SAMPLES = 300, 24, 5, 12, 40


def texts():
    random = np.random.RandomState(0)
    # The last batch has three texts, one fewer than the largest job has ranks.
    ids = (random.zipf(1.3, size=(4 * BATCH + 3, LENGTH)) % WORDS).astype("int32")
    return ids, (ids * 7 + 1) % WORDS


def batches(size=BATCH):
    return tf.data.Dataset.from_tensor_slices(texts()).batch(size)


def normal(seed):
    return keras.initializers.RandomNormal(seed=seed)


class LanguageModel(keras.Model):
    """Its first table is built in `fit`, the others by the loss."""

    def __init__(self, partition):
        super().__init__()
        self.embedding = layers.ShardedEmbedding(WORDS, WIDTH, embeddings_initializer=normal(3))
        self.dense = keras.layers.Dense(WIDTH, "tanh", kernel_initializer=normal(4))
        self.table = layers.ShardedEmbedding(
            WORDS, WIDTH, embeddings_initializer=normal(5), partition=partition
        )
        self.bias = layers.ShardedEmbedding(WORDS, 1, embeddings_initializer="zeros")

    def call(self, ids):
        return self.dense(self.embedding(ids))


def sampled(context, partition):
    with context.scope():
        model = LanguageModel(partition)
        loss = losses.SampledSoftmax(
            model.table, model.bias, samples=SAMPLES, seed=3, block_rows=64
        )
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), loss)
    results = case_table.fit(model, batches(), epochs=2, validation_data=batches())
    results["evaluated"] = model.evaluate(batches(), verbose=0)
    features = model.predict(texts()[0], verbose=0)
    scores = features @ model.table.get_weights()[0].T + model.bias.get_weights()[0][:, 0]
    results["full"] = keras.ops.mean(
        keras.losses.sparse_categorical_crossentropy(texts()[1], scores, from_logits=True)
    )
    return results


def sampled_by_column(context):
    return sampled(context, "column")


def sampled_by_row(context):
    return sampled(context, "row")


def reversible(context, make, make_optimizer):
    with context.scope():
        layer = make()
        ids = keras.Input((LENGTH,), dtype="int32")
        hidden = keras.layers.Dense(WIDTH, "tanh", kernel_initializer=normal(4))(layer(ids))
        model = keras.Model(ids, layer(hidden, reverse=True))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(make_optimizer(), loss)
    strategy = context.strategy
    before = strategy.statistics()["bytes_sent"] if context.world_size > 1 else 0
    history = model.fit(batches(), epochs=2, verbose=0).history
    sent = 0
    if context.world_size > 1:
        strategy.synchronize()
        sent = strategy.statistics()["bytes_sent"] - before
        sent = int(strategy.all_reduce(tf.constant(sent, tf.int64)))
    results = {"history/loss": history["loss"], "bytes": sent, **case_table.weights(model)}
    results["slots"] = [np.abs(v.numpy()).sum() for v in model.optimizer.variables[2:]]
    results["evaluated"] = model.evaluate(batches(), verbose=0)
    results["predicted"] = model.predict(texts()[0], verbose=0)
    return results


def sharded_reversible(**arguments):
    return lambda: layers.ShardedEmbedding(
        WORDS, WIDTH, reversible=True, embeddings_initializer=normal(3), **arguments
    )


def keras_reversible(**arguments):
    return lambda: keras.layers.ReversibleEmbedding(
        WORDS, WIDTH, embeddings_initializer=normal(3), **arguments
    )


def momentum():
    return keras.optimizers.SGD(0.5, momentum=0.9)


def adam():
    return keras.optimizers.Adam(0.01)


def tied(context):
    return reversible(context, sharded_reversible(logit_soft_cap=5.0), momentum)


def tied_by_column(context):
    return reversible(context, sharded_reversible(logit_soft_cap=5.0, partition="column"), momentum)


def tied_adam(context):
    return reversible(context, sharded_reversible(), adam)


def untied(context):
    return reversible(context, sharded_reversible(tie_weights=False), momentum)


def dense_tied(context):
    return reversible(context, keras_reversible(logit_soft_cap=5.0), momentum)


def dense_tied_adam(context):
    return reversible(context, keras_reversible(), adam)


def dense_untied(context):
    return reversible(context, keras_reversible(tie_weights=False), momentum)


class TiedByHand(keras.layers.Layer):
    """Compares vectors with all rows of a table that also is looked up in."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def call(self, vectors):
        return keras.ops.matmul(vectors, keras.ops.transpose(self.table.embeddings))


def tied_by_hand(context):
    """One variable has a dense gradient and one of rows; clipped, as one gradient, on each rank."""
    with context.scope():
        table = layers.ShardedEmbedding(WORDS, WIDTH, embeddings_initializer=normal(3))
        ids = keras.Input((LENGTH,), dtype="int32")
        hidden = keras.layers.Dense(WIDTH, "tanh", kernel_initializer=normal(4))(table(ids))
        model = keras.Model(ids, TiedByHand(table)(hidden))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9, clipvalue=10.0), loss)
    return case_table.fit(model, batches(), epochs=2)


def shared_table(context):
    """The sampled softmax's rows are those of the table by which words are read."""
    with context.scope():
        model = LanguageModel("auto")
        model.embedding = model.table
        loss = losses.SampledSoftmax(model.table, model.bias, samples=SAMPLES, seed=3)
        model.compile(keras.optimizers.Adam(0.01), loss)
    return case_table.fit(model, batches(), epochs=2)


def finished_model():
    """A model in a model, whose second table is used twice."""
    ids = keras.Input((LENGTH,), dtype="int32")
    words = keras.layers.Embedding(WORDS, WIDTH, embeddings_initializer=normal(3), name="words")
    encoder = keras.Sequential([words, keras.layers.Dense(8, kernel_initializer=normal(4))])
    classes = keras.layers.Embedding(50, 8, embeddings_initializer=normal(5), name="classes")
    both = encoder(ids) * classes(ids % 50) + classes(ids % 7)
    return keras.Model(ids, keras.layers.Dense(1, kernel_initializer=normal(6))(both))


def divided(context):
    ids, _ = texts()
    with context.scope():
        model = finished_model()
    results = {"before": model.predict(ids, batch_size=BATCH, verbose=0)}
    names = layers.shard(model, updates="exact")
    results["names"] = sorted(layer.name for layer in names)
    results["classes"] = [type(layer).__name__ for layer in names]
    results["again"] = len(layers.shard(model))
    results["after"] = model.predict(ids, batch_size=BATCH, verbose=0)
    results["kept/0"] = model.get_layer("classes").get_weights()[0]
    with context.scope():
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), "mse")
    targets = np.sin(ids).astype("float32")[..., np.newaxis]
    data = tf.data.Dataset.from_tensor_slices((ids, targets)).batch(BATCH)
    results.update(case_table.fit(model, data, epochs=2))
    try:
        layers.unshard(model)
    except ValueError as error:
        results["refused"] = str(error)
    trained = model.predict(ids, batch_size=BATCH, verbose=0)
    path = context.directory / f"divided_{context.world_size}.weights.h5"
    if context.rank == 0:
        model.save_weights(path)
    if context.strategy:
        context.strategy.barrier()
    with context.scope():
        plain = finished_model()
        plain.load_weights(path)
        model.compile(keras.optimizers.SGD(0.5), "mse")
    results["trained"] = trained
    results["loaded"] = plain.predict(ids, batch_size=BATCH, verbose=0)
    results["plain again"] = sorted(type(layer).__name__ for layer in layers.unshard(model))
    results["whole again"] = model.predict(ids, batch_size=BATCH, verbose=0)
    return results


def ending_together(case):
    # A rank that has ended hands out no rows of tables.
    def run(context):
        results = case(context)
        if context.strategy:
            context.strategy.barrier()
        return results

    return run


CASES = [sampled_by_column, sampled_by_row, tied, tied_by_column, tied_adam, untied]
CASES += [tied_by_hand, shared_table, divided]
if hasattr(keras.layers, "ReversibleEmbedding"):
    CASES += [dense_tied, dense_tied_adam, dense_untied]

if __name__ == "__main__":
    case_table.main({case.__name__: ending_together(case) for case in CASES})
