# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains a model with two tables and stores what it holds then, and the events of its steps."""

import json
import os
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfdear
from tfdear.gradients import next_ids

directory = pathlib.Path(sys.argv[1])
HINTS = os.environ.get("CASE_HINTS", "right")
ROWS, STEPS, BATCH = int(os.environ.get("CASE_ROWS", "400")), 16, 12
ZIPF = float(os.environ.get("CASE_ZIPF", "1.3"))
WIDTHS = [int(width) for width in os.environ.get("CASE_WIDTHS", "33 4").split()]
BACKWARD = float(os.environ.get("CASE_BACKWARD", "0.001"))

strategy = tfdear.DearStrategy()
expected_next = next_ids.next_of


def random_next(ids):
    """Ids that are a guess: other ones on every rank and in every step, or none at all."""
    following = expected_next(ids)
    if following is None or HINTS == "absent":
        return None
    guess = tf.random.uniform(tf.shape(following.ids), 0, ROWS, following.ids.dtype)
    some = tf.where(tf.random.uniform([]) < 0.5, guess, following.ids)
    present = following.present & (tf.random.uniform([]) < 0.8)
    return next_ids.NextIds(some, present)


@tf.custom_gradient
def slow_backward(value):
    """A pass during which collectives have time."""

    def gradient(upstream):
        (passed,) = tf.numpy_function(
            lambda given: [time.sleep(BACKWARD), given][1:], [upstream], [upstream.dtype]
        )
        return tf.ensure_shape(passed, upstream.shape)

    return tf.identity(value), gradient


if HINTS != "right":
    next_ids.next_of = random_next

draw = np.random.default_rng(1)
words = (draw.zipf(ZIPF, (STEPS * BATCH, 9)) % ROWS).astype("int32")
labels = (words.sum(1) % 2).astype("float32")

with strategy.scope():
    keras.utils.set_random_seed(2)
    ids = keras.Input((9,), dtype="int32")
    wide = tfdear.layers.ShardedEmbedding(ROWS, WIDTHS[0], partition="column")
    narrow = tfdear.layers.ShardedEmbedding(ROWS, WIDTHS[1])
    vectors = keras.layers.Concatenate()([wide(ids), narrow((ids * 7) % ROWS)])
    vectors = keras.layers.Lambda(slow_backward)(vectors)
    for width in (256, 256):
        vectors = keras.layers.Dense(width, "tanh")(vectors)
    score = keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(vectors))
    model = keras.Model(ids, score)
    model.compile(
        os.environ.get("CASE_OPTIMIZER", "adam"),
        keras.losses.BinaryCrossentropy(from_logits=True),
        steps_per_execution=int(os.environ.get("CASE_STEPS_PER_EXECUTION", "1")),
    )
dataset = tf.data.Dataset.from_tensor_slices((words, labels)).batch(BATCH)
model.fit(dataset, epochs=1, verbose=0)
strategy.events()
model.fit(dataset, epochs=1, verbose=0)
arrays = [np.asarray(variable) for variable in (*model.variables, *model.optimizer.variables)]
np.savez(directory / f"rank_{strategy.extended.rank}.npz", *arrays)
events = [(e.kind, e.ticket, e.subject, e.detail, e.begin, e.end) for e in strategy.events()]
(directory / f"rank_{strategy.extended.rank}.json").write_text(json.dumps(events))
