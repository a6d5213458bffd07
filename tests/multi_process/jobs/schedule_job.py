# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trainings whose weights must not depend on when communication happens, and what happened."""

import case_table
import keras
import numpy as np
import tensorflow as tf

RANDOM = np.random.RandomState(3)
X = RANDOM.randn(52, 16).astype("float32")
Y = RANDOM.randn(52, 2).astype("float32")


def deep(context, optimizer, **arguments):
    """Several layers of 1 KiB to 4 KiB, so that small buckets hold one gradient or a few."""
    with context.scope():
        layers = [keras.layers.Dense(32, activation="tanh") for _ in range(4)]
        model = keras.Sequential([keras.layers.Input((16,)), *layers, keras.layers.Dense(2)])
        model.compile(optimizer(), "mse", **arguments)
    return model


def single_steps(context):
    model = deep(context, lambda: keras.optimizers.AdamW(1e-3, weight_decay=1e-2))
    return case_table.fit(model, X, Y, batch_size=10, shuffle=False, epochs=3)


def several_steps(context):
    model = deep(context, lambda: keras.optimizers.SGD(0.01, momentum=0.9), steps_per_execution=4)
    return case_table.fit(model, X, Y, batch_size=10, shuffle=False, epochs=3)


class Adversaries(keras.Model):
    """A generator and a discriminator, each with an optimizer of its own."""

    def __init__(self):
        super().__init__()
        self.generator = network((4, 24, 16))
        self.discriminator = network((16, 24, 1))
        self.loss_function = keras.losses.BinaryCrossentropy(from_logits=True)

    def compile(self, **arguments):
        super().compile(loss=self.loss_function, **arguments)
        self.generator_optimizer = keras.optimizers.Adam(1e-3)
        self.discriminator_optimizer = keras.optimizers.RMSprop(1e-3)

    def build(self, input_shape=None):
        self.built = True

    def call(self, noise):
        return self.generator(noise)

    def train_step(self, data):
        noise, real = data
        return adversarial_step(
            self.generator,
            self.discriminator,
            self.generator_optimizer,
            self.discriminator_optimizer,
            lambda labels, logits: self.compute_loss(noise, labels, logits),
            noise,
            real,
        )


def network(sizes):
    hidden = keras.layers.Dense(sizes[1], activation="tanh")
    return keras.Sequential([keras.layers.Input((sizes[0],)), hidden, keras.layers.Dense(sizes[2])])


def adversarial_step(
    generator, discriminator, generator_optimizer, discriminator_optimizer, loss, noise, real
):
    """The second update sees the first: the generator learns from the new discriminator."""
    fake = generator(noise)
    with tf.GradientTape() as tape:
        true, false = discriminator(real), discriminator(fake)
        labels = tf.concat([tf.ones_like(true), tf.zeros_like(false)], 1)
        judged = loss(labels, tf.concat([true, false], 1))
    variables = discriminator.trainable_variables
    discriminator_optimizer.apply_gradients(
        zip(tape.gradient(judged, variables), variables, strict=True)
    )
    with tf.GradientTape() as tape:
        logits = discriminator(generator(noise))
        fooled = loss(tf.ones_like(logits), logits)
    variables = generator.trainable_variables
    generator_optimizer.apply_gradients(
        zip(tape.gradient(fooled, variables), variables, strict=True)
    )
    return {"judged": judged, "fooled": fooled}


def adversaries(context):
    with context.scope():
        model = Adversaries()
        model.compile()
    model.fit(X[:, :4], X, batch_size=10, shuffle=False, epochs=2, verbose=0)
    optimizers = [model.generator_optimizer, model.discriminator_optimizer]
    return final(model.generator, model.discriminator, *optimizers)


def adversaries_in_a_loop(context):
    with context.scope():
        generator, discriminator = network((4, 24, 16)), network((16, 24, 1))
        optimizers = [keras.optimizers.Adam(1e-3), keras.optimizers.SGD(0.05, momentum=0.9)]
        each = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")

    def loss(labels, logits):
        return tf.nn.compute_average_loss(each(labels, logits), global_batch_size=10)

    @tf.function
    def step(batch):
        def replica(noise, real):
            return adversarial_step(generator, discriminator, *optimizers, loss, noise, real)

        losses = context.run(replica, batch)
        if context.strategy:
            losses = context.strategy.reduce("SUM", losses, axis=None)
        return losses

    dataset = tf.data.Dataset.from_tensor_slices((X[:, :4], X)).batch(10, drop_remainder=True)
    history = []
    for _ in range(2):
        for batch in context.distribute(dataset):
            losses = step(batch)
            history.append([float(losses["judged"]), float(losses["fooled"])])
    return {"history": history, **final(generator, discriminator, *optimizers)}


def final(*owners):
    variables = [variable for owner in owners for variable in owner.variables]
    return {
        "digests": case_table.digest(variables),
        **{
            f"weight/{place}": keras.ops.convert_to_numpy(variable)
            for place, variable in enumerate(variables)
        },
    }


def events(context):
    """The engine's record of some steps of one training."""
    with context.scope():
        layers = [keras.layers.Dense(512, activation="tanh") for _ in range(4)]
        model = keras.Sequential([keras.layers.Input((512,)), *layers, keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.random.RandomState(0).randn(2560, 512).astype("float32")
    y = x[:, :2]
    model.fit(x, y, batch_size=512, verbose=0)
    context.strategy.synchronize()
    context.strategy.events()
    model.fit(x, y, batch_size=256, epochs=1, verbose=0)
    context.strategy.synchronize()
    record = context.strategy.events()
    return {
        "kind": [event.kind for event in record],
        "numbers": [(e.ticket, e.subject, e.detail, e.begin, e.end) for e in record],
    }


CASES = {
    function.__name__: function
    for function in (single_steps, several_steps, adversaries, adversaries_in_a_loop, events)
}

if __name__ == "__main__":
    case_table.main(CASES)
