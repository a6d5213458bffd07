# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The network of digits.py, trained by a loop of its own with `strategy.run`.

Start it with `tfdear run -n 2 examples/custom_loop.py`, or as digits.py in any other way.
"""

import argparse

import keras
import tensorflow as tf
from digits import load_data, make_model

import tfdear


def main() -> None:
    """Trains, and prints the metrics of every epoch."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    args = parser.parse_args()

    # First of all: ranks meet here, and agree on the seed of every shuffle.
    strategy = tfdear.DearStrategy()
    keras.utils.set_random_seed(1)
    training, validation = load_data()

    # Batches of the global size, of which every rank takes its rows.
    training = tf.data.Dataset.from_tensor_slices(training).shuffle(2000).batch(args.batch_size)
    validation = tf.data.Dataset.from_tensor_slices(validation).batch(args.batch_size)
    steps = args.epochs * int(training.cardinality())
    training = strategy.experimental_distribute_dataset(training)
    validation = strategy.experimental_distribute_dataset(validation)

    with strategy.scope():
        model = make_model()
        optimizer = keras.optimizers.AdamW(
            keras.optimizers.schedules.CosineDecay(3e-3, steps), weight_decay=1e-3
        )
        optimizer.build(model.trainable_variables)
        compute_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # Metrics made in the scope count the examples of all ranks.
        metrics = [
            keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="loss"),
            keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
        ]

    def update_metrics(labels, logits):
        for metric in metrics:
            metric.update_state(labels, logits)

    def train_step(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            # In `strategy.run` a Keras loss is weighted by this rank's share of the examples: the
            # sum over the ranks is the mean over the global batch.
            loss = compute_loss(labels, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        # Sums the gradients over the ranks, in the background.
        optimizer.apply(gradients, model.trainable_variables)
        update_metrics(labels, logits)

    def validation_step(images, labels):
        update_metrics(labels, model(images, training=False))

    @tf.function
    def run_training_step(batch):
        strategy.run(train_step, args=batch)

    @tf.function
    def run_validation_step(batch):
        strategy.run(validation_step, args=batch)

    def take_results() -> str:
        results = "  ".join(f"{metric.name} {float(metric.result()):.4f}" for metric in metrics)
        for metric in metrics:
            metric.reset_state()
        return results

    for epoch in range(args.epochs):
        for batch in training:
            run_training_step(batch)
        training_results = take_results()
        for batch in validation:
            run_validation_step(batch)
        validation_results = take_results()
        if strategy.is_chief:
            print(f"epoch {epoch + 1:2d}  {training_results}  validation: {validation_results}")


if __name__ == "__main__":
    main()
