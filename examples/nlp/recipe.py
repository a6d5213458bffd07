# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the four examples share: arguments, training, measuring, and the table printed."""

from __future__ import annotations

import argparse
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
    return parser


def train(model: keras.Model, batches: tf.data.Dataset, steps: int) -> float:
    """Trains for this many steps on endless batches, and returns the seconds."""
    lines = next(n for n in range(max(1, steps // _STEPS_PER_LINE), 0, -1) if steps % n == 0)
    begin = time.perf_counter()
    model.fit(batches, epochs=lines, steps_per_epoch=steps // lines, shuffle=False, verbose=2)
    return time.perf_counter() - begin


def mean_loss(strategy: tfdear.DearStrategy, model: keras.Model, batches: tf.data.Dataset) -> float:
    """Returns the cross-entropy per token, in nats, of a model that yields logits.

    Args:
        strategy: the model's.
        model: its layers; it is compiled anew.
        batches: (inputs, labels), or (inputs, labels, weights) where some are only padding.
    """
    with strategy.scope():
        # A metric, because it divides by the sum of the weights; a loss by the number of labels.
        loss = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="token_loss")
        model.compile(loss=_no_loss, weighted_metrics=[loss])
    return model.evaluate(batches, return_dict=True, verbose=0)["token_loss"]


def _no_loss(labels, logits):
    # Keras asks for a loss, and the metric is one already.
    return tf.zeros_like(labels, tf.float32)


def print_summary(strategy: tfdear.DearStrategy, rows: dict[str, str]) -> None:
    """Prints the results, once."""
    if strategy.is_chief:
        print()
        for name, value in rows.items():
            print(f"{name:<28} {value}")
