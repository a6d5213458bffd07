# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the four examples share: arguments, training, measuring, and the table printed."""

from __future__ import annotations

import argparse
import json
import pathlib
import time

import keras
import tensorflow as tf

import tfdear

# Between two lines of progress, or more.
_STEPS_PER_LINE = 50


def argument_parser(description: str) -> argparse.ArgumentParser:
    """Returns a parser of the arguments that every example has."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument(
        "--text",
        choices=["prepared", "fallback"],
        default="prepared",
        help="what `make text` made, or Python's own help, for a test",
    )
    parser.add_argument(
        "--shapes",
        choices=["default", "paper"],
        default="default",
        help="sizes that train in one to two minutes on two cores, or the paper's",
    )
    parser.add_argument("--steps", type=int, help="of training, in place of the recipe's number")
    parser.add_argument(
        "--curve", type=pathlib.Path, help="a file to write the loss after each step to, as JSON"
    )
    return parser


class _Curve(keras.callbacks.Callback):
    """Keeps the loss after each step: the mean since the last line of progress."""

    def __init__(self):
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))


def train(
    strategy: tfdear.DearStrategy,
    model: keras.Model,
    batches: tf.data.Dataset,
    steps: int,
    curve: pathlib.Path | None = None,
) -> float:
    """Trains on endless batches, and returns the seconds.

    Args:
        strategy: the model's.
        model: compiled.
        batches: for this training, and no end to them.
        steps: number of batches to train on.
        curve: file to which rank 0 writes the losses, and how many bytes it sent.
    """
    lines = next(n for n in range(max(1, steps // _STEPS_PER_LINE), 0, -1) if steps % n == 0)
    callbacks = [_Curve()] if curve else []
    sent = strategy.statistics()["bytes_sent"]
    begin = time.perf_counter()
    model.fit(
        batches,
        epochs=lines,
        steps_per_epoch=steps // lines,
        shuffle=False,
        verbose=2,
        callbacks=callbacks,
    )
    seconds = time.perf_counter() - begin
    if curve and strategy.is_chief:
        sent = strategy.statistics()["bytes_sent"] - sent
        curve.write_text(json.dumps({"losses": callbacks[0].losses, "bytes_sent": sent}))
    return seconds


def token_loss() -> keras.metrics.Metric:
    """Returns the cross-entropy per token, in nats, of logits, for `measure`."""
    # A metric, because it divides by the sum of the weights; a loss by the number of labels.
    return keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="token_loss")


def measure(
    strategy: tfdear.DearStrategy, model: keras.Model, batches: tf.data.Dataset, metrics
) -> dict[str, float]:
    """Returns metrics of a trained model, by name; in training they would take time in each step.

    Args:
        strategy: the model's.
        model: its layers; it is compiled anew.
        batches: (inputs, labels), or (inputs, labels, weights) where some are only padding.
        metrics: functions that return one for each output, in the structure of the outputs.
    """
    with strategy.scope():
        losses = tf.nest.map_structure(lambda _: _no_loss, metrics)
        made = tf.nest.map_structure(lambda make: make(), metrics)
        model.compile(loss=losses, weighted_metrics=made)
    return model.evaluate(batches, return_dict=True, verbose=0)


def _no_loss(labels, logits):
    # Keras asks for a loss, and the metric is one already.
    return tf.zeros_like(labels, tf.float32)


def print_summary(strategy: tfdear.DearStrategy, rows: dict[str, str]) -> None:
    """Prints the results, once."""
    if strategy.is_chief:
        print()
        for name, value in rows.items():
            print(f"{name:<28} {value}")
