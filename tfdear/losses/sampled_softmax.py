# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The loss of an output layer over very many classes."""

import random
from typing import Any

import keras
import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.base import checks
from tfdear.data import step_data
from tfdear.gradients import variable as variable_module
from tfdear.losses import candidates as candidates_module

# Keras hands labels to losses as float32, in which larger whole numbers are not exact.
_MOST_CLASSES = 1 << 24


@keras.saving.register_keras_serializable("tfdear")
class SampledSoftmax(keras.losses.Loss):
    """Cross-entropy against the right class and some wrong ones, in place of all.

    Use it to train a language model with many words, in place of a dense output layer: the model
    yields features, and this loss has the layer's weights, each rank a part of them. A step needs
    the rows of its labels and of the candidates. These are drawn anew in each step, each class
    about as often as the word of its rank in a list by frequency (log-uniformly, without
    repetition), the same on all ranks: so the result does not depend on how many there are. What a
    candidate's chance to be drawn adds to its score is taken off again, and candidates that are an
    example's label do not count as wrong ones for it.

    Where no gradient is recorded, as in `evaluate` and for validation data, it is the cross-entropy
    against all classes; its exponential is the perplexity. Rows come from all ranks in blocks: no
    rank holds the table, or the scores of all classes. (`full` and `sampled` are either one.)

    Create it in the strategy's scope, on all ranks, and keep the layers as attributes of the model,
    which then trains and saves them. A saved model is loaded with `compile=False`, and compiled
    again.

    Args:
        table: A `tfdear.layers.ShardedEmbedding` with a row for each class, the frequent ones
            first. It is built if it is not yet.
        bias: Another one, with one column: what is added to each class's score. None: nothing is.
        samples: Wrong classes to draw, at most as many as there are classes. Defaults to 8192.
        seed: What the classes are drawn from; rank 0's counts. Defaults to None: a number from
            Python's generator, which `keras.utils.set_random_seed` seeds.
        block_rows: Rows of a block in the evaluation. Defaults to 4096.
        reduction: As in `keras.losses.Loss`. Defaults to "sum_over_batch_size".
        name: As there.

    Labels (`y_true`): whole numbers of any shape. Features (`y_pred`): that shape and a last
    dimension of the table's columns.

    Raises:
        TypeError: `table` or `bias` is no ShardedEmbedding.
        ValueError: The shapes of table and bias do not fit, there are more samples than classes, or
            more classes than 2**24.
        tf.errors.InvalidArgumentError: Ranks drew different candidates, on all ranks; or a label is
            not a row of the table.

    Reference: Jean et al., "On Using Very Large Target Vocabulary for Neural Machine Translation",
    ACL 2015. What it computes is `tf.nn.sampled_softmax_loss`.

    Example:

    >>> with tfdear.DearStrategy().scope():
    ...     table = tfdear.layers.ShardedEmbedding(1000, 16)
    ...     bias = tfdear.layers.ShardedEmbedding(1000, 1, embeddings_initializer="zeros")
    ...     loss = tfdear.losses.SampledSoftmax(table, bias, samples=50)
    >>> round(float(loss(tf.constant([1, 2]), tf.zeros([2, 16]))), 3)
    6.908
    """

    def __init__(
        self,
        table: Any,
        bias: Any = None,
        *,
        samples: int = 8192,
        seed: int | None = None,
        block_rows: int = 4096,
        reduction: str | None = "sum_over_batch_size",
        name: str = "sampled_softmax",
    ):
        super().__init__(name=name, reduction=reduction, dtype="float32")
        for argument, layer in (("table", table), ("bias", bias)):
            if not hasattr(layer, "look_up") and (layer is not None or argument == "table"):
                raise TypeError(
                    f"`{argument}` must be a tfdear.layers.ShardedEmbedding. Received: {layer!r}"
                )
        classes = table.input_dim
        if bias is not None and (bias.input_dim, bias.output_dim) != (classes, 1):
            raise ValueError(
                f"`bias` must have one column and the table's {classes} rows. Received: "
                f"{bias.input_dim} rows of {bias.output_dim} columns"
            )
        if classes > _MOST_CLASSES:
            raise ValueError(f"There may be at most 2**24 classes. Received: {classes}")
        for argument, value, most in (("samples", samples, classes), ("block_rows", block_rows, 0)):
            if not checks.is_whole(value) or value < 1 or most and value > most:
                raise ValueError(
                    f"`{argument}` must be a whole number from 1"
                    f"{f' to the {most} classes' if most else ''}. Received: {argument}={value!r}"
                )
        for layer in (table, bias):
            if layer is not None and not layer.built:
                layer.build((None,))
        self._table, self._bias = table, bias
        self._optimizer: keras.optimizers.Optimizer | None = None
        self._classes, self._samples, self._block_rows = classes, samples, block_rows
        seed = tf.constant(random.randrange(1 << 31) if seed is None else seed, tf.int64)
        extended = tf.distribute.get_strategy().extended
        self._seed = int(
            extended.broadcast_value(seed) if getattr(extended, "is_dear", False) else seed
        )
        with variable_module.identical_writes():
            # What is drawn next.
            self.sampled_step = tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                name="sampled_softmax_step",
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def follow(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Makes it draw what belongs to an optimizer's steps, or later; `fit` calls it.

        These are in checkpoints, so that a training which goes on draws what it would have drawn.
        """
        # Of two in one another the inner one counts.
        self._optimizer = getattr(optimizer, "inner_optimizer", optimizer)

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        if not _tf_private.record.could_possibly_record():
            return self.full(y_true, y_pred)
        return self.sampled(y_true, y_pred)

    def sampled(self, labels: Any, features: Any) -> tf.Tensor:
        """The losses of examples against new candidates, in the shape of the labels.

        Use it in a loop of your own. It draws anew in each call, so call it on all ranks equally
        often. What it draws next is in the variable `sampled_step`: put it into your checkpoints.
        """
        with step_data.required():
            step = self.sampled_step.read_value()
            if self._optimizer is not None:
                # What counts its steps: `iterations` are fewer where gradients are accumulated.
                steps = tf.convert_to_tensor(self._optimizer.variables[0])
                # Not these alone: a step of one's own may apply another optimizer.
                step = tf.maximum(step, tf.cast(steps, tf.int64))
            self.sampled_step.assign(step + 1)
        return self._against_drawn(labels, features, step)

    def _against_drawn(self, labels: Any, features: Any, step: tf.Tensor) -> tf.Tensor:
        flat_labels, flat_features, shape = self._flatten(labels, features)
        drawn, tries = candidates_module.draw(self._seed, step, self._samples, self._classes)
        ids = tf.concat([drawn, flat_labels], 0)
        rows, biases = self._rows(ids, common=self._samples)
        count = self._samples
        biases -= candidates_module.log_expected_count(ids, tries, count, self._classes)
        right = tf.reduce_sum(flat_features * rows[count:], 1) + biases[count:]
        wrong = tf.matmul(flat_features, rows[:count], transpose_b=True) + biases[:count]
        is_right = flat_labels[:, tf.newaxis] == drawn
        wrong = tf.where(is_right, wrong.dtype.min, wrong)
        scores = tf.concat([right[:, tf.newaxis], wrong], 1)
        return tf.reshape(tf.reduce_logsumexp(scores, 1) - right, shape)

    def full(self, labels: Any, features: Any) -> tf.Tensor:
        """The losses of examples against all classes, in the shape of the labels.

        Use it in a loop of your own, on all ranks. It has no gradient.
        """
        flat_labels, flat_features, shape = self._flatten(labels, features)
        rows, biases = self._rows(flat_labels)
        right = tf.reduce_sum(flat_features * rows, 1) + biases

        def add_block(
            begin: tf.Tensor, highest: tf.Tensor, total: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            end = tf.minimum(begin + self._block_rows, self._classes)
            scores = tf.matmul(
                flat_features, tf.cast(self._table.block(begin, end), tf.float32), transpose_b=True
            )
            if self._bias is not None:
                scores += tf.cast(self._bias.block(begin, end), tf.float32)[:, 0]
            # The sum of exponentials, each divided by that of the highest score so far.
            raised = tf.maximum(highest, tf.reduce_max(scores, 1))
            total *= tf.exp(highest - raised)
            total += tf.reduce_sum(tf.exp(scores - raised[:, tf.newaxis]), 1)
            return end, raised, total

        _, highest, total = tf.while_loop(
            lambda begin, highest, total: begin < self._classes,
            add_block,
            (tf.constant(0, tf.int64), tf.fill(tf.shape(right), right.dtype.min), right * 0.0),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None]), tf.TensorShape([None])),
            parallel_iterations=1,
        )
        return tf.stop_gradient(tf.reshape(highest + tf.math.log(total) - right, shape))

    def _flatten(self, labels: Any, features: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The labels, the features of each, and the shape of the labels."""
        features = tf.cast(features, tf.float32)
        columns = self._table.output_dim
        if features.shape.rank is None or features.shape[-1] not in (None, columns):
            raise ValueError(
                f"The loss needs features whose last dimension is {columns}, the table's columns. "
                f"Received: features of shape {features.shape}"
            )
        shape = tf.shape(features)[:-1]
        # Labels may have a last dimension of 1.
        labels = tf.reshape(tf.cast(labels, tf.int32), [-1])
        return labels, tf.reshape(features, [-1, columns]), shape

    def _rows(self, ids: tf.Tensor, common: int = 0) -> tuple[tf.Tensor, tf.Tensor]:
        """The rows and biases of classes."""
        rows = tf.cast(self._table.look_up(ids, common), tf.float32)
        if self._bias is None:
            return rows, tf.zeros(tf.shape(ids), tf.float32)
        return rows, tf.cast(self._bias.look_up(ids, common), tf.float32)[:, 0]
