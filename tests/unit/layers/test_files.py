# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import keras
import numpy as np

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


_SERVES = """
import sys
sys.modules["tfdear"] = None
import tensorflow as tf

module = tf.saved_model.load(sys.argv[1])
served = module.serve(tf.constant([[1, 2, 6], [0, 4, 4]]))
print(served.numpy().tobytes().hex())
"""


def test_an_exported_folder_is_that_of_plain_layers(tmp_path):
    with tfdear.DearStrategy().scope():
        ids = keras.Input((3,), dtype="int32")
        vectors = tfdear.layers.ShardedEmbedding(7, 4)(ids)
        sums = tfdear.layers.ShardedEmbedding(7, 4, combiner="sum")(ids)
        model = keras.Model(ids, keras.ops.sum(vectors, 1) + sums)
    tables = [layer.table for layer in model.layers if hasattr(layer, "table")]
    path = tmp_path / "words"
    model.export(path, verbose=False)
    kept = [layer.table for layer in model.layers if hasattr(layer, "table")]
    assert len(kept) == 2 and all(one is other for one, other in zip(kept, tables, strict=True))
    serving = subprocess.run(
        [sys.executable, "-c", _SERVES, str(path)], capture_output=True, text=True, timeout=120
    )
    assert serving.returncode == 0, serving.stderr
    served = np.frombuffer(bytes.fromhex(serving.stdout.splitlines()[-1]), "float32")
    expected = model(np.array([[1, 2, 6], [0, 4, 4]]))
    np.testing.assert_allclose(served.reshape(2, 4), expected, rtol=1e-6, atol=1e-7)
