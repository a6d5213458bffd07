# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains a small convolutional network on scikit-learn's handwritten digits.

    tfdear run -n 2 examples/digits.py      # two workers on this machine
    python examples/digits.py               # one process
    TF_CONFIG=... python examples/digits.py # one of several workers, started by hand

It needs scikit-learn: `pip install "tfdear[examples]"`.
An ordinary Keras script but for three places: the strategy is made first, the model is built in its
scope, and only rank 0 prints.
"""

import argparse
import time

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tfdear


def load_data() -> tuple:
    """Returns ((images, labels) for training, (images, labels) for validation)."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32").reshape(-1, 8, 8, 1)
    # A fixed split: every rank must hold the same data.
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    return (train_images, train_labels), (test_images, test_labels)


def make_model() -> keras.Model:
    """Returns two convolutional blocks and a classifier: 60 thousand weights."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.25),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )


class EpochMeter(keras.callbacks.Callback):
    """Measures the training part of every epoch: its time and what the communication cost."""

    def __init__(self, strategy: tfdear.DearStrategy):
        super().__init__()
        self._strategy = strategy
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self._strategy.statistics()  # Forgets what came before.
        self._begin = time.perf_counter()
        self._training = True

    def on_test_begin(self, logs=None):
        if self._training:  # The validation inside `fit`, after the last step of the epoch.
            self._training = False
            self._strategy.synchronize()
            seconds = time.perf_counter() - self._begin
            self.epochs.append({"seconds": seconds, **self._strategy.statistics()})

    def on_train_end(self, logs=None):
        self._training = False

    def steady(self, name: str) -> float:
        """Mean of a measurement over the epochs but for the first, which traces the model."""
        return float(np.mean([epoch[name] for epoch in self.epochs[1:] or self.epochs]))


def print_summary(strategy: tfdear.DearStrategy, meter: EpochMeter, accuracy: float) -> None:
    """Prints the result, and where the time of an epoch went."""
    rows = [
        ("workers", f"{strategy.world_size}"),
        ("validation accuracy", f"{accuracy:.2%}"),
        ("time per epoch", f"{meter.steady('seconds'):.3f} s"),
        ("communication", f"{meter.steady('communication'):.3f} s"),
        ("exposed communication", f"{meter.steady('exposed'):.3f} s"),
    ]
    if strategy.world_size > 1:
        hidden = 1 - meter.steady("exposed") / meter.steady("communication")
        rows.append(("overlap", f"{hidden:.1%} of the communication is hidden"))
    else:
        rows.append(("overlap", "no communication: one worker"))
    print()
    for name, value in rows:
        print(f"{name:<22} {value}")


def main() -> None:
    """Trains, evaluates and prints a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--schedule", choices=["dear", "wfbp", "sequential"], default="dear")
    args = parser.parse_args()

    # First of all: ranks meet here, and agree on the seed of every shuffle.
    strategy = tfdear.DearStrategy(schedule=args.schedule)
    keras.utils.set_random_seed(1)
    (images, labels), validation = load_data()
    with strategy.scope():
        model = make_model()
        steps = args.epochs * -(-len(images) // args.batch_size)
        model.compile(
            optimizer=keras.optimizers.AdamW(
                keras.optimizers.schedules.CosineDecay(3e-3, steps), weight_decay=1e-3
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    meter = EpochMeter(strategy)
    history = model.fit(
        images,
        labels,
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=validation,
        callbacks=[meter],
        verbose=2,
    )
    if strategy.is_chief:
        print_summary(strategy, meter, history.history["val_accuracy"][-1])


if __name__ == "__main__":
    main()
