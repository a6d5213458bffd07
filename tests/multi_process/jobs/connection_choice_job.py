# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Arguments: the device, where to write how many connections were chosen."""

import pathlib
import sys

import keras
import numpy as np

import tfdear

with tfdear.DearStrategy() as strategy:
    with strategy.scope():
        model = keras.Sequential([keras.Input((300,)), keras.layers.Dense(1000)])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 300)), np.ones((8, 1000)), batch_size=4, epochs=2, verbose=0)
    statistics = strategy.statistics()
    assert statistics["transports"]["gradients"] == "tcp"
    pathlib.Path(f"{sys.argv[2]}.{strategy.rank}").write_text(str(statistics["connections"]))
