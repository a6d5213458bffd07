# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Steps of models that sleep, under Horovod: rows of tables are gathered, all else is all-reduced.

It needs TensorFlow with Keras 2.
"""

import functools

import drawn_ids  # type: ignore[import-not-found]
import horovod.tensorflow as hvd
import keras
import numpy as np
import sleeping_model  # type: ignore[import-not-found]
import tensorflow as tf

_models: dict = {}


class _Model(sleeping_model.SleepingModel):
    """Sums each gradient when it is there, and updates its variable when the sum is there."""

    def __init__(self, layers, tables):
        super().__init__(layers, tables)
        self.exchanges = []

    def train_step(self, data):
        """A step of `fit`, as with Horovod's own optimizers, but for its clock."""
        inputs, labels = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(sleeping_model.mean_output(labels, self(inputs)))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        begins, sums, ends = zip(*map(_summed, range(len(gradients)), gradients), strict=True)
        self.optimizer.apply_gradients(zip(sums, variables, strict=True))
        tf.numpy_function(self._note, [tf.stack(begins), tf.stack(ends)], [])
        return {"loss": loss}

    def _note(self, begins, ends):
        """Notes how long any gradient of a step was on its way."""
        seconds = upto = 0.0
        for begin, end in sorted(zip(begins, ends, strict=True)):
            seconds += max(end - max(begin, upto), 0.0)
            upto = max(upto, end)
        self.exchanges.append(float(seconds))


def _summed(number, gradient):
    """When a gradient was there, its mean over the ranks, and when that was."""
    if isinstance(gradient, tf.IndexedSlices):
        with tf.control_dependencies([gradient.values]):
            begin = tf.timestamp()
        # Its values and its indices are gathered.
        total = hvd.allreduce(gradient)
        parts = [total.values, total.indices]
    else:
        # A layer's gradient is a constant, whose mean TensorFlow would find once and for all.
        gradient = tf.raw_ops.PlaceholderWithDefault(input=gradient, shape=gradient.shape)
        with tf.control_dependencies([gradient]):
            begin = tf.timestamp()
        total = hvd.allreduce(gradient, name=f"gradient_{number}")
        parts = [total]
    with tf.control_dependencies(parts):
        return begin, total, tf.timestamp()


def build(name: str, layers: list, tables: list) -> None:
    """Makes a model by the name of a method; `layers` and `tables` as `table_steps.build` has them.

    All ranks have whole tables.
    """
    made = [sleeping_model.SleepingLayer(**layer) for layer in layers]
    lookups = {
        table["layer"]: keras.layers.Embedding(
            table["rows"], table["columns"], embeddings_initializer="zeros"
        )
        for table in tables
    }
    model = _Model(made, lookups)
    model.compile(keras.optimizers.SGD(0.5))
    _models[name] = model, len(tables)


def run(name: str, ids: list, steps: int) -> dict:
    """Makes steps of a method; takes and returns what `table_steps.run` does.

    The only exchange of a step is the time in which any gradient was on its way.
    """
    model, count = _models[name]
    batches = [_own_ids(number, **arguments) for number, arguments in enumerate(ids[:count])]
    model.exchanges.clear()
    seconds = sleeping_model.seconds_of_steps(model, sleeping_model.endless(1, batches), steps)
    return {"seconds": seconds, "exchanges": {"gradients": list(model.exchanges)}}


@functools.lru_cache(maxsize=8)
def _own_ids(seed: int, function: str, **counts: int) -> np.ndarray:
    """This rank's part of the batches."""
    ids = getattr(drawn_ids, function)(ranks=hvd.size(), seed=seed, **counts)
    return ids[:, hvd.rank()][:, np.newaxis]
