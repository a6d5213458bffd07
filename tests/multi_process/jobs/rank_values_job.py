# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What is each rank's own in a step, and what is that of all: rank_values_job.py REPORT."""

import gc
import json
import sys
import weakref

import keras
import numpy as np
import tensorflow as tf

import tfdear

strategy = tfdear.DearStrategy(timeout=60)
RANK = strategy.rank
INPUTS = np.random.RandomState(3).randn(11, 2).astype("float32")
report = {}


def noise():
    return tf.random.normal([3]), tf.nn.dropout(tf.ones([20]), 0.5)


in_graph = tf.function(lambda: strategy.run(noise))
nested = tf.function(tf.function(noise))
report["noise"] = {
    "graph": [[value.numpy().tolist() for value in in_graph()] for _ in range(2)],
    "nested": [value.numpy().tolist() for value in tf.function(lambda: strategy.run(nested))()],
    "eager": [[value.numpy().tolist() for value in strategy.run(noise)] for _ in range(2)],
}
# Outside of steps all ranks have the same.
report["outside"] = [tf.random.normal([3]).numpy().tolist() for _ in range(2)]


def gathered(x):
    everything = strategy.all_gather(x)
    one = strategy.broadcast(tf.reduce_sum(everything)[tf.newaxis])
    return everything, everything * 2, tf.concat([x, x], 0), one


def of_batches(step):
    """What a step returns for one batch of 4 rows and one of a single row."""
    data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(5).batch(4))
    return [[value.numpy().tolist() for value in step(batch)] for batch in data]


report["gathered"] = of_batches(tf.function(lambda x: strategy.run(gathered, args=(x,))))
report["gathered eagerly"] = of_batches(lambda x: strategy.run(gathered, args=(x,)))


class Counting(keras.Model):
    """Logs whole numbers from a function of its own."""

    def train_step(self, data):
        return self.decorated(data)

    @tf.function
    def decorated(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        rows = tf.shape(x)[0]
        large = tf.reduce_sum(tf.cast(x[:, 0] > 0, tf.int32))
        every = tf.distribute.get_replica_context().all_gather(x, axis=0)
        return {
            "loss": loss,
            "step": tf.cast(self.optimizer.iterations, tf.int32),
            "rows": rows,
            "large": tf.cond(rows > 0, lambda: large, lambda: 0),
            "all": tf.reduce_sum(tf.cast(every[:, 0] > 0, tf.int32)),
            "chosen": tf.cond(self.optimizer.iterations > 0, lambda: 7, lambda: 8),
        }


with strategy.scope():
    keras.utils.set_random_seed(1)
    given = keras.Input((2,))
    model = Counting(given, keras.layers.Dense(1)(given))
    model.compile("sgd")
history = model.fit(INPUTS, INPUTS[:, :1], batch_size=6, shuffle=False, verbose=0).history
report["logs"] = {name: values[-1] for name, values in history.items() if name != "loss"}


def fit_once():
    """A reference to a data set that nobody needs any more."""
    data = tf.data.Dataset.from_tensor_slices((INPUTS, INPUTS[:, :1])).cache().batch(4)
    model.fit(data, verbose=0)
    return weakref.ref(data)


data_set = fit_once()
gc.collect()
report["kept"] = data_set() is not None
with open(f"{sys.argv[1]}.{RANK}", "w") as file:
    json.dump(report, file)
