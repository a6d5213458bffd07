# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The most memory that a rank needs for sharded tables with Adam: one of the ranks of a job.

    tfdear run -n 4 tfdear/benchmarks/studies/table_memory.py --rows 1000
    tfdear run -n 4 tfdear/benchmarks/studies/table_memory.py

The difference is what a rank has of the tables and their slots, to be compared with the whole of
them divided by the ranks. `--save` and `--load` show what files add, in a job of their own each.
"""

import argparse
import pathlib

import keras
import numpy as np

import tfdear

_STEPS, _WINDOWS, _WORDS = 20, 64, 20


def _peak_mebibytes() -> float:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no line VmHWM")


def _model(rows: int, columns: int) -> keras.Model:
    given = [keras.Input((_WORDS,), dtype="int32") for _ in range(2)]
    vectors = [
        keras.layers.GlobalAveragePooling1D()(tfdear.layers.ShardedEmbedding(rows, columns)(ids))
        for ids in given
    ]
    model = keras.Model(given, keras.layers.Dot(axes=-1)(vectors))
    model.compile("adam", "mse")
    return model


def main() -> None:
    """Trains a few steps, and prints this rank's figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=793_471, help="of each of the two tables")
    parser.add_argument("--columns", type=int, default=512)
    parser.add_argument("--save", metavar="FILE", help="save the model there afterwards")
    parser.add_argument("--load", metavar="FILE", help="begin with the model from there")
    options = parser.parse_args()
    strategy = tfdear.DearStrategy()
    with strategy.scope():
        if options.load:
            model = keras.models.load_model(options.load)
            print(f"after loading: {_peak_mebibytes():.0f} MiB", flush=True)
        else:
            model = _model(options.rows, options.columns)
    rows = model.layers[2].input_dim
    ids = np.random.default_rng(0).zipf(1.2, (2, _STEPS * _WINDOWS, _WORDS)) % rows
    model.fit(list(ids.astype("int32")), np.ones(len(ids[0])), batch_size=_WINDOWS, verbose=0)
    print(f"after {_STEPS} steps: {_peak_mebibytes():.0f} MiB", flush=True)
    if options.save and strategy.is_chief:
        model.save(options.save)
        print(f"after saving: {_peak_mebibytes():.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
