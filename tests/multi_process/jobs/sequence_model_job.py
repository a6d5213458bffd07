# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains layers that are applied at every place of a sequence; stores weights and buckets."""

import json
import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear

keras.utils.set_random_seed(1)
strategy = tfdear.DearStrategy(fusion=tfdear.fusion.SingleBucket())
with strategy.scope():
    # TensorFlow does not know the shapes of these kernels' gradients while it traces.
    model = keras.Sequential(
        [keras.Input((5, 6)), *(keras.layers.Dense(6, activation="tanh") for _ in range(4))]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
inputs = np.random.RandomState(0).randn(16, 5, 6).astype("float32")
batches = tf.data.Dataset.from_tensor_slices((inputs, inputs[..., ::-1])).batch(4)
model.fit(batches, epochs=4, verbose=0)
travelled = [event.subject for event in strategy.events() if event.kind == "reduce_scatter"]
path = pathlib.Path(sys.argv[1], f"rank_{strategy.rank}.json")
weights = [weight.tolist() for weight in model.get_weights()]
path.write_text(json.dumps({"buckets": sorted({*travelled}), "weights": weights}))
