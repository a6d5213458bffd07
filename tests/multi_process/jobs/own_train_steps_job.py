# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Well-known kinds of models with steps and losses of their own, as scripts write them.

What such scripts draw in a step (noise, augmented views) comes with the data here, and nothing is
dropped out: one process and several ranks draw other numbers.
"""

import case_table
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

RANDOM = np.random.RandomState(7)
# Batches of 8, 8 and 1: no number of ranks above 2 divides them, and most have no last example.
ROWS, BATCH = 17, 8
PICTURES = RANDOM.uniform(0, 1, (ROWS, 8, 8, 1)).astype("float32")
LABELS = RANDOM.randint(0, 3, (ROWS,)).astype("int32")


def normal(*shape):
    return RANDOM.randn(ROWS, *shape).astype("float32")


def fit(model, *columns, **arguments):
    data = columns if len(columns) > 1 else columns[0]
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(BATCH)
    return case_table.fit(model, dataset, epochs=2, **arguments)


class Adversaries(keras.Model):
    """Two networks, two optimizers, one loss object; the losses are logged through means."""

    def __init__(self, generator, discriminator):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator
        self.judged, self.fooled = keras.metrics.Mean("judged"), keras.metrics.Mean("fooled")
        self.seed_generator = keras.random.SeedGenerator(5)

    def compile(self, generator_optimizer, discriminator_optimizer, loss):
        super().compile()
        self.generator_optimizer = generator_optimizer
        self.discriminator_optimizer = discriminator_optimizer
        self.loss_object = loss

    @property
    def metrics(self):
        return [self.judged, self.fooled]

    def train_step(self, data):
        real, noise, more_noise = data
        count = ops.shape(real)[0]
        labels = ops.concatenate([ops.ones((count, 1)), ops.zeros((count, 1))], axis=0)
        both = ops.concatenate([self.generator(noise), real], axis=0)
        with tf.GradientTape() as tape:
            judged = self.loss_object(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.discriminator_optimizer.apply_gradients(
            zip(tape.gradient(judged, weights), weights, strict=True)
        )
        with tf.GradientTape() as tape:
            logits = self.discriminator(self.generator(more_noise))
            fooled = self.loss_object(ops.zeros((count, 1)), logits)
        weights = self.generator.trainable_weights
        self.generator_optimizer.apply_gradients(
            zip(tape.gradient(fooled, weights), weights, strict=True)
        )
        self.judged.update_state(judged)
        self.fooled.update_state(fooled)
        return {"judged": self.judged.result(), "fooled": self.fooled.result()}


def adversaries(context, make_optimizer):
    with context.scope():
        generator = keras.Sequential(
            [
                keras.Input((5,)),
                layers.Dense(4 * 4 * 2),
                layers.LeakyReLU(negative_slope=0.2),
                layers.Reshape((4, 4, 2)),
                layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="sigmoid"),
            ]
        )
        discriminator = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(3, 3, strides=2, padding="same"),
                layers.LeakyReLU(negative_slope=0.2),
                layers.GlobalAveragePooling2D(),
                layers.Dense(1),
            ]
        )
        model = Adversaries(generator, discriminator)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(make_optimizer(), make_optimizer(), loss)
    return fit(model, PICTURES, normal(5), normal(5))


class Autoencoder(keras.Model):
    """A variational autoencoder: means over the batch of sums over pixels, written by hand."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([layers.Flatten(), layers.Dense(6, activation="relu")])
        self.mean, self.log_variance = layers.Dense(2), layers.Dense(2)
        self.decoder = keras.Sequential(
            [layers.Dense(64, activation="sigmoid"), layers.Reshape((8, 8, 1))]
        )
        self.total = keras.metrics.Mean("total")
        self.divergence = keras.metrics.Mean("divergence")

    @property
    def metrics(self):
        return [self.total, self.divergence]

    def call(self, data):
        pictures, noise = data
        hidden = self.encoder(pictures)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decoder(mean + ops.exp(0.5 * log_variance) * noise), mean, log_variance

    def train_step(self, data):
        with tf.GradientTape() as tape:
            decoded, mean, log_variance = self(data, training=True)
            crossentropy = keras.losses.binary_crossentropy(data[0], decoded)
            reconstruction = ops.mean(ops.sum(crossentropy, axis=(1, 2)))
            divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            divergence = ops.mean(ops.sum(divergence, axis=1))
            total = reconstruction + divergence
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(total, weights), weights, strict=True))
        self.total.update_state(total)
        self.divergence.update_state(divergence)
        return {"total": self.total.result(), "divergence": self.divergence.result()}


def autoencoder(context, make_optimizer):
    noise = normal(2)
    with context.scope():
        model = Autoencoder()
        model((PICTURES[:1], noise[:1]))
        model.compile(make_optimizer())
    return fit(model, PICTURES, noise)


class Contrast(keras.Model):
    """Two views of a picture belong together, against those of all pictures of the global batch."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential(
            [keras.Input((8, 8, 1)), layers.Conv2D(3, 3, strides=2), layers.Flatten()]
        )
        self.head = keras.Sequential([keras.Input((27,)), layers.Dense(4)])
        self.probe = keras.Sequential([keras.Input((27,)), layers.Dense(3)])
        self.probe_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.contrast_tracker = keras.metrics.Mean("contrast")
        self.accuracy = keras.metrics.SparseCategoricalAccuracy("accuracy")
        self.probe_tracker = keras.metrics.Mean("probe")

    def compile(self, optimizer, probe_optimizer):
        super().compile()
        self.contrast_optimizer, self.probe_optimizer = optimizer, probe_optimizer

    @property
    def metrics(self):
        return [self.contrast_tracker, self.accuracy, self.probe_tracker]

    def gather(self, rows):
        if isinstance(self.distribute_strategy, tf.distribute.MirroredStrategy):
            return tf.distribute.get_replica_context().all_gather(rows, axis=0)
        return rows

    def contrast(self, first, second, numbers):
        first, second = ops.normalize(first, axis=1), ops.normalize(second, axis=1)
        all_numbers = self.gather(numbers)
        places = ops.argmax(ops.equal(numbers[:, None], all_numbers[None, :]), axis=1)
        forth = ops.matmul(first, ops.transpose(self.gather(second))) / 0.5
        back = ops.matmul(second, ops.transpose(self.gather(first))) / 0.5
        self.accuracy.update_state(places, forth)
        losses = [
            keras.losses.sparse_categorical_crossentropy(places, logits, from_logits=True)
            for logits in (forth, back)
        ]
        return ops.mean(losses[0] + losses[1]) / 2

    def train_step(self, data):
        first, second, labels, numbers = data
        with tf.GradientTape() as tape:
            views = [self.head(self.encoder(view)) for view in (first, second)]
            loss = self.contrast(*views, numbers)
        weights = self.encoder.trainable_weights + self.head.trainable_weights
        self.contrast_optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        self.contrast_tracker.update_state(loss)
        with tf.GradientTape() as tape:
            probe_loss = self.probe_loss(labels, self.probe(self.encoder(first)))
        weights = self.probe.trainable_weights
        self.probe_optimizer.apply_gradients(
            zip(tape.gradient(probe_loss, weights), weights, strict=True)
        )
        self.probe_tracker.update_state(probe_loss)
        return {metric.name: metric.result() for metric in self.metrics}


def contrast(context, make_optimizer):
    with context.scope():
        model = Contrast()
        model.compile(make_optimizer(), make_optimizer())
    views = [PICTURES + 0.1 * normal(8, 8, 1) for _ in range(2)]
    return fit(model, *views, LABELS, np.arange(ROWS, dtype="int32"))


class Distiller(keras.Model):
    """A student learns from labels and from a teacher; the loss is `compute_loss`'s."""

    def __init__(self, student, teacher):
        super().__init__()
        self.student, self.teacher = student, teacher

    def compile(self, optimizer, metrics, student_loss, distillation_loss):
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss, self.distillation_loss = student_loss, distillation_loss

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False, training=True
    ):
        softened = [ops.softmax(logits / 4.0) for logits in (self.teacher(x), y_pred)]
        distilled = self.distillation_loss(*softened) * 16.0
        return 0.3 * self.student_loss(y, y_pred) + 0.7 * distilled

    def call(self, x):
        return self.student(x)


def classifier(width):
    parts = [keras.Input((8, 8, 1)), layers.Conv2D(width, 3, strides=2), layers.LeakyReLU()]
    return keras.Sequential([*parts, layers.Flatten(), layers.Dense(3)])


def distillation(context, make_optimizer):
    with context.scope():
        model = Distiller(classifier(2), classifier(5))
        model.teacher.trainable = False
        model.compile(
            make_optimizer(),
            [keras.metrics.SparseCategoricalAccuracy("accuracy")],
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            keras.losses.KLDivergence(),
        )
    validation = tf.data.Dataset.from_tensor_slices((PICTURES, LABELS)).batch(5)
    return fit(model, PICTURES, LABELS, validation_data=validation)


class Positions(layers.Layer):
    """Adds a vector to each place of a sequence. In one process its gradient is a dense one."""

    def __init__(self, length, width):
        super().__init__()
        self.length, self.width = length, width

    def build(self, input_shape):
        self.table = self.add_weight(shape=(self.length, self.width), name="positions")

    def call(self, sequence):
        return sequence + ops.take(self.table, ops.arange(self.length), axis=0)


def transformer(sequence, width):
    x = layers.LayerNormalization(epsilon=1e-6)(sequence)
    x = sequence + layers.MultiHeadAttention(2, 3, use_bias=False)(x, x)
    hidden = layers.Dense(2 * width, activation="gelu")(layers.LayerNormalization()(x))
    return x + layers.Dense(width)(hidden)


def vision_transformer(context, make_optimizer):
    with context.scope():
        inputs = keras.Input((8, 8, 1))
        patches = layers.Reshape((4, 16))(ops.image.extract_patches(inputs, size=4))
        x = transformer(Positions(4, 6)(layers.Dense(6)(patches)), 6)
        x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
        model = keras.Model(inputs, layers.Dense(3)(layers.Dense(8, activation="gelu")(x)))
        model.compile(
            make_optimizer(),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")],
        )
    return fit(model, PICTURES, LABELS)


def text_transformer(context, make_optimizer):
    words = np.random.RandomState(3).randint(0, 9, (ROWS, 6)).astype("int32")
    with context.scope():
        inputs = keras.Input((6,), dtype="int32")
        # A dense gradient in one process too: words repeat.
        x = Positions(6, 6)(layers.Dense(6, use_bias=False)(ops.one_hot(inputs, 9)))
        x = layers.GlobalAveragePooling1D()(transformer(x, 6))
        model = keras.Model(inputs, layers.Dense(3, activation="softmax")(x))
        model.compile(make_optimizer(), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return fit(model, words, LABELS)


def sequences(context, make_optimizer):
    with context.scope():
        source, target = keras.Input((None, 3)), keras.Input((None, 4))
        _, *state = layers.LSTM(5, return_state=True)(source)
        decoded = layers.LSTM(5, return_sequences=True)(target, initial_state=state)
        model = keras.Model([source, target], layers.Dense(4, activation="softmax")(decoded))
        model.compile(make_optimizer(), "categorical_crossentropy", metrics=["accuracy"])
    answers = np.eye(4, dtype="float32")[np.random.RandomState(4).randint(0, 4, (ROWS, 5))]
    return fit(model, (normal(6, 3), normal(5, 4)), answers)


def table(context, make_optimizer):
    """Named columns of numbers and strings, looked up and normalized in the data's pipeline."""
    numbers = normal()
    kinds = np.array(["red", "green", "blue"])[LABELS]
    with context.scope():
        normalized = layers.Normalization(axis=None)
        normalized.adapt(numbers)
        # Without a place for other words, which a rank that has no row must not come with.
        lookup = layers.StringLookup(
            vocabulary=["red", "green", "blue"], num_oov_indices=0, output_mode="one_hot"
        )
        inputs = {
            "number": keras.Input((1,), name="number"),
            "kind": keras.Input((1,), dtype="string", name="kind"),
        }
        x = layers.Concatenate()([normalized(inputs["number"]), lookup(inputs["kind"])])
        x = layers.Dense(1, activation="sigmoid")(layers.Dense(4, activation="tanh")(x))
        model = keras.Model(inputs, x)
        model.compile(make_optimizer(), "binary_crossentropy", metrics=["accuracy"])
    columns = {"number": numbers[:, None], "kind": kinds[:, None]}
    return fit(model, columns, (LABELS > 1).astype("float32")[:, None])


class MeanPenalty(layers.Layer):
    def call(self, inputs):
        self.add_loss(ops.mean(ops.square(inputs)))
        return inputs


class ByHand(keras.Model):
    """A mean by hand, regularizers and `add_loss`; what is returned is logged as it is."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(self(x, training=True) - y)) + sum(self.losses)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def by_hand(context, make_optimizer):
    with context.scope():
        inputs = keras.Input((4,))
        regularizer = keras.regularizers.L1L2(0.01, 0.02)
        x = MeanPenalty()(
            layers.Dense(5, activation="tanh", kernel_regularizer=regularizer)(inputs)
        )
        model = ByHand(inputs, layers.Dense(2)(x))
        model.compile(make_optimizer())
    return fit(model, normal(4), normal(2))


KINDS = (
    adversaries,
    autoencoder,
    contrast,
    distillation,
    vision_transformer,
    text_transformer,
    sequences,
    table,
    by_hand,
)


def case(kind, make_optimizer):
    def train(context):
        RANDOM.seed(7)
        return kind(context, make_optimizer)

    return train


CASES = {kind.__name__: case(kind, lambda: keras.optimizers.SGD(0.05)) for kind in KINDS}
CASES.update(
    (f"adaptive_{kind.__name__}", case(kind, lambda: keras.optimizers.Adam(1e-3)))
    for kind in (adversaries, autoencoder, contrast)
)

if __name__ == "__main__":
    tf.config.experimental.enable_op_determinism()
    case_table.main(CASES)
