# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains plain embedding layers, whose tables change by rows or, to compare, as a whole."""

import functools
import tempfile
from unittest import mock

import case_table
import keras
import numpy as np
import tensorflow as tf

from tfdear.gradients.row_variable import RowVariable
from tfdear.integrations.keras import embeddings

ROWS, WIDTH, WORDS, BATCH, STEPS = 60, 8, 5, 12, 8
_optimizers = keras.optimizers


def data():
    random = np.random.default_rng(3)
    words = (random.zipf(1.4, (STEPS * BATCH, WORDS)) - 1) % (ROWS - 10)
    words[::7, 0] = -words[::7, 0] % 3 - 3  # As from the end.
    return words.astype("int32"), random.normal(size=(len(words), 1)).astype("float32")


class Tied(keras.Model):
    """Whose output layer is the table, which it reads whole."""

    def __init__(self):
        super().__init__()
        self.words = _layer()
        self.dense = keras.layers.Dense(1, kernel_initializer=_initializer(5))

    def call(self, inputs):
        vectors = keras.ops.mean(self.words(inputs), 1)
        scores = keras.ops.matmul(vectors, keras.ops.transpose(self.words.embeddings))
        return self.dense(scores)


def _initializer(seed):
    return keras.initializers.RandomUniform(-0.5, 0.5, seed=seed)


def _layer(**arguments):
    return keras.layers.Embedding(
        ROWS, WIDTH, embeddings_initializer=_initializer(4), name="words", **arguments
    )


def _model(**arguments):
    return keras.Sequential(
        [
            keras.Input((WORDS,), dtype="int32"),
            _layer(**arguments),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, kernel_initializer=_initializer(5)),
        ]
    )


class Interruptions(keras.callbacks.Callback):
    """Reads and writes the table between steps, in ways of its own."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        table = self.model.layers[0].embeddings
        if batch == 2:
            self.seen.append(np.array(table))
        elif batch == 3:
            table.assign(keras.ops.multiply(table, 0.5))
        elif batch == 4:
            rows = tf.IndexedSlices(tf.ones((2, WIDTH)), tf.constant([1, 50]))
            table.value.scatter_update(rows)
            self.seen.append(tf.gather(table.value, [0, 1, 49, 59]).numpy())
        elif batch == 5:
            self.model.set_weights([value * 0.9 for value in self.model.get_weights()])
            self.seen.append(tf.maximum(table.value, 0.0).numpy())


def fit(model, optimizer, *, callbacks=(), **arguments):
    words, labels = data()
    model.compile(optimizer, "mse", **arguments)
    model.fit(words, labels, batch_size=BATCH, shuffle=False, verbose=0, callbacks=callbacks)
    slots = enumerate(model.optimizer.variables)
    return {f"slot/{place}": keras.ops.convert_to_numpy(slot) for place, slot in slots}


def interrupted(model, optimizer):
    callback = Interruptions()
    result = fit(model, optimizer, callbacks=[callback])
    return {**result, **{f"seen/{i}": value for i, value in enumerate(callback.seen)}}


def own_loop(model, optimizer, strategy):
    words, labels = data()
    losses = keras.losses.MeanSquaredError()
    dataset = tf.data.Dataset.from_tensor_slices((words, labels)).batch(BATCH)

    def step(batch):
        with tf.GradientTape() as tape:
            loss = losses(batch[1], model(batch[0], training=True))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    @tf.function
    def run(iterator):
        strategy.run(step, args=(next(iterator),))

    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    graph = run.get_concrete_function(iterator).graph
    for _ in range(STEPS):
        run(iterator)
    uses = _uses_of(model.layers[0].embeddings.value, graph)
    return {**uses, "predicted": model(words[:BATCH]).numpy()}


def exported(model, optimizer):
    """What a folder of the model says; it must load without tfdear's operations."""
    result = fit(model, optimizer, steps_per_execution=4)
    words, _ = data()
    result["predicted"] = model.predict(words[:BATCH], verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.export(folder, verbose=False)
        loaded = tf.saved_model.load(folder)
        result["served"] = loaded.serve(words[:BATCH]).numpy()
        graph = loaded.signatures["serve"].graph
        operations = {op.type for op in graph.get_operations()}
        library = {
            node.op
            for function in graph.as_graph_def().library.function
            for node in function.node_def
        }
    result["dear"] = np.array(sum(name.startswith("Dear") for name in operations | library))
    return result


def _uses_of(variable, graph):
    """How many operations of each type in a graph use a variable."""
    handle = variable.raw_handle if hasattr(variable, "raw_handle") else variable.handle
    inside = [internal for captured, internal in graph.captures if captured is handle]
    counts = {}
    for op in graph.get_operations():
        if any(tensor is used for tensor in op.inputs for used in inside):
            counts[f"count/{op.type}"] = counts.get(f"count/{op.type}", 0) + 1
    return counts


OPTIMIZERS = {
    "adam": lambda: _optimizers.Adam(0.05),
    "average": lambda: _optimizers.AdamW(
        0.05, weight_decay=0.1, clipnorm=0.05, use_ema=True, ema_momentum=0.9
    ),
    "accumulated": lambda: _optimizers.Adam(0.05, gradient_accumulation_steps=2),
    "mixed": lambda: _optimizers.LossScaleOptimizer(_optimizers.Adam(0.05)),
    "lamb": lambda: _optimizers.Lamb(0.05),  # It is not element-wise.
}


def case(context, name, by_rows):
    strategy = context.strategy
    keras.config.set_dtype_policy("mixed_bfloat16" if name == "mixed" else "float32")
    with mock.patch.object(embeddings, "_LEAST_BYTES", 0 if by_rows else 1 << 60):
        with context.scope():
            model = Tied() if name == "tied" else _model()
            optimizer = OPTIMIZERS.get(name, OPTIMIZERS["adam"])()
        if name == "interrupted":
            result = interrupted(model, optimizer)
        elif name == "loop":
            result = own_loop(model, optimizer, strategy)
        elif name == "exported":
            result = exported(model, optimizer)
        else:
            result = fit(model, optimizer, run_eagerly=name == "eager")
    keras.config.set_dtype_policy("float32")
    table = model.layers[0].embeddings.value
    assert isinstance(table, RowVariable) == (by_rows and strategy.world_size > 1)
    if name == "loop" and strategy.world_size > 1:
        seen = strategy.statistics()["embeddings"]["words"]
        assert set(seen["costs"]) == {"all_to_all", "all_gather", "all_reduce"}
        for key in ("rows", "columns", "steps", "summed_steps"):
            result[f"seen/{key}"] = np.array(seen[key])
    context.wait_for_ranks()
    return {**result, **case_table.weights(model)}


NAMES = (
    *("average", "accumulated", "mixed", "lamb", "tied"),
    *("interrupted", "loop", "exported", "eager"),
)
CASES = {
    f"{name}:{kind}": functools.partial(case, name=name, by_rows=kind == "rows")
    for name in NAMES
    for kind in ("rows", "whole")
}

if __name__ == "__main__":
    case_table.main(CASES)
