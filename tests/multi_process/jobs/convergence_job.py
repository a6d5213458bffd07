# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains the digits under the compression that TFDEAR_COMPRESSION names; writes its accuracy.

convergence_job.py DIRECTORY LEARNING_RATE [LEARNING_RATE ...]
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "examples"))

import keras
from digits import load_data, make_model

import tfdear

EPOCHS = 20
BATCH = 64
# One training's accuracy is off by half a point, as likely as not.
SEEDS = range(1, 6)


def accuracy(strategy, learning_rate: float, seed: int) -> float:
    """Validation accuracy, the mean of the last five epochs."""
    keras.utils.set_random_seed(seed)
    training, validation = load_data()
    steps = EPOCHS * -(-len(training[0]) // BATCH)
    with strategy.scope():
        model = make_model()
        model.compile(
            keras.optimizers.SGD(
                keras.optimizers.schedules.CosineDecay(learning_rate, steps), momentum=0.9
            ),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(
        *training, batch_size=BATCH, epochs=EPOCHS, validation_data=validation, verbose=0
    )
    return sum(history.history["val_accuracy"][-5:]) / 5


def main() -> None:
    strategy = tfdear.DearStrategy()
    found = [accuracy(strategy, float(sys.argv[2]), seed) for seed in SEEDS]
    print(found)
    if strategy.is_chief:
        pathlib.Path(sys.argv[1], "accuracy.json").write_text(json.dumps(sum(found) / len(found)))


main()
