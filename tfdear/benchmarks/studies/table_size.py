# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The time of a training step, by the number of rows of its table; the ids are the same.

    python tfdear/benchmarks/studies/table_size.py

Adam with exact updates changes every row in every step, in effect. The two models train in turns.
"""

import argparse
import statistics
import time

import keras
import numpy as np

import tfdear

_COLUMNS, _BATCH, _WORDS = 64, 64, 20
_UNMEASURED_STEPS = 20  # Of a turn: the caches still hold what the other model used.


class _StepSeconds(keras.callbacks.Callback):
    """From one end of a step to the next."""

    def on_train_begin(self, logs: dict | None = None) -> None:
        del logs
        self._ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        del batch, logs
        self._ends.append(time.perf_counter())

    def median(self) -> float:
        return float(np.median(np.diff(self._ends)[_UNMEASURED_STEPS:]))


def _model(rows: int) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((_WORDS,), dtype="int32"),
            tfdear.layers.ShardedEmbedding(rows, _COLUMNS),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    return model


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs=2, default=(10_000, 1_000_000))
    parser.add_argument("--steps", type=int, default=200, help="of a turn")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each model")
    options = parser.parse_args()
    strategy = tfdear.DearStrategy()
    with strategy.scope():
        models = [_model(rows) for rows in options.rows]
    shape = (_BATCH * options.steps, _WORDS)
    ids = (np.random.default_rng(0).zipf(1.2, shape) % min(options.rows)).astype("int32")
    seconds: list[list[float]] = [[], []]
    for turn in range(options.repeats + 1):  # The first one traces.
        for model, times in zip(models, seconds, strict=True):
            steps = _StepSeconds()
            model.fit(
                ids,
                np.ones(len(ids)),
                batch_size=_BATCH,
                shuffle=False,
                verbose=0,
                callbacks=[steps],
            )
            if turn:
                times.append(steps.median())
    if strategy.is_chief:
        ratios = [large / small for small, large in zip(*seconds, strict=True)]
        for rows, times in zip(options.rows, seconds, strict=True):
            print(f"{rows:9,} rows: {statistics.median(times) * 1e3:.3f} ms a step")
        print("ratios:", *(f"{r:.2f}" for r in ratios), f"median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
