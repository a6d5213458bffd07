# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import keras

import tfdear

# No more than a script that goes on with a saved model: nothing but the strategy.
_LOADS = """
import sys
import keras
import tfdear

with tfdear.DearStrategy().scope():
    model = keras.models.load_model(sys.argv[1])
print(*(type(layer).__name__ for layer in model.layers), sep=",")
"""


def test_a_script_that_only_loads_gets_sharded_layers(tmp_path):
    with tfdear.DearStrategy().scope():
        model = keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                tfdear.layers.ShardedEmbedding(7, 4),
                tfdear.layers.ShardedEmbedding(5, 2, combiner="sum"),
            ]
        )
    path = tmp_path / "words.keras"
    model.save(path)
    loading = subprocess.run(
        [sys.executable, "-c", _LOADS, str(path)], capture_output=True, text=True, timeout=120
    )
    assert loading.returncode == 0, loading.stderr
    assert loading.stdout.splitlines()[-1] == "ShardedEmbedding,ShardedEmbedding"
