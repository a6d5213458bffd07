# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""All ranks export to one folder many times, and read it at once: export_job.py DIRECTORY TIMES."""

import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdear

FOLDER = pathlib.Path(sys.argv[1]) / "exported"
X = np.random.RandomState(0).rand(9, 4).astype("float32")
strategy = tfdear.DearStrategy(timeout=60)

with strategy.scope():
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("adam", "mse")
for _ in range(int(sys.argv[2])):
    model.fit(X, X, verbose=0)
    model.export(FOLDER, verbose=False)
    loaded = tf.saved_model.load(FOLDER)
    served = loaded.serve(X).numpy()
    np.testing.assert_allclose(served, model(X, training=False), rtol=1e-5, atol=1e-6)
print("read what was exported")
