# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A sharded embedding layer that also turns vectors into scores of all ids."""

from typing import Any

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear.gradients import table_lookup
from tfdear.layers import files, placing
from tfdear.layers.sharded_embedding import ShardedEmbedding


@files.stands_in_for(getattr(keras.layers, "ReversibleEmbedding", None))
@keras.saving.register_keras_serializable("tfdear")
class ShardedReversibleEmbedding(ShardedEmbedding):
    """`ShardedEmbedding(..., reversible=True)`: as `keras.layers.ReversibleEmbedding`, in parts.

    Use it where a model's output layer compares vectors with all rows of the table. All rows are
    gathered from all ranks in the forward pass, once in a step, and the gradient's rows go to the
    ranks that hold them: together, what a dense gradient costs.

    Args:
        input_dim: As in `ShardedEmbedding`, and so are those that are not described here.
        output_dim: See there.
        embeddings_initializer: See there.
        embeddings_regularizer: See there.
        embeddings_constraint: See there.
        mask_zero: See there.
        weights: See there.
        lora_rank: See there.
        reversible: Must be True.
        tie_weights: Whether scores are of the table; else of a table of its own, which is divided
            too. Defaults to True.
        reverse_dtype: Type in which scores are computed. Defaults to None: the layer's.
        logit_soft_cap: Scores are `tanh(scores / logit_soft_cap) * logit_soft_cap`. Defaults to
            None: they are not bounded.
        combiner: Must be None.
        **kwargs: `partition`, `exchange`, `updates` and those of `keras.layers.Layer`.

    Raises:
        ValueError: As `ShardedEmbedding`.

    Reference: Press and Wolf, "Using the Output Embedding to Improve Language Models", EACL 2017.

    Example:

    >>> with tfdear.DearStrategy().scope():
    ...     layer = tfdear.layers.ShardedEmbedding(1000, 16, reversible=True)
    >>> layer(layer(tf.constant([1, 2, 3])), reverse=True).shape
    TensorShape([3, 1000])
    """

    combiner = None
    OWN_ARGUMENTS = ("partition", "exchange", "updates")

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        weights: Any = None,
        lora_rank: int | None = None,
        *,
        reversible: bool = True,
        tie_weights: bool = True,
        reverse_dtype: Any = None,
        logit_soft_cap: float | None = None,
        combiner: str | None = None,
        **kwargs: Any,
    ):
        if combiner is not None or not reversible:
            raise ValueError(
                "A reversible embedding has no `combiner`. Received: "
                f"combiner={combiner!r}, reversible={reversible}"
            )
        super().__init__(
            input_dim,
            output_dim,
            embeddings_initializer=embeddings_initializer,
            embeddings_regularizer=embeddings_regularizer,
            embeddings_constraint=embeddings_constraint,
            mask_zero=mask_zero,
            weights=weights,
            lora_rank=lora_rank,
            **kwargs,
        )
        self.tie_weights = tie_weights
        self.reverse_dtype = reverse_dtype
        self.logit_soft_cap = logit_soft_cap

    def choices(self) -> placing.Choices:
        # A dense gradient touches all rows, and by rows their numbers travel once.
        choices = super().choices()
        if choices.partition != "auto":
            return choices
        return placing.Choices("row", choices.exchange, choices.updates)

    def build(self, input_shape: Any = None) -> None:
        if self.built:
            return
        super().build(input_shape)
        if not self.tie_weights:
            self.reverse_embeddings = self.add_table(
                (self.output_dim, self.input_dim),
                "reverse_embeddings",
                self.embeddings_initializer,
            )

    def call(self, inputs: Any, reverse: bool = False) -> tf.Tensor:  # type: ignore[override]
        if reverse:
            return self._scores_of(inputs)
        result = super().call(inputs)
        mask = super().compute_mask(inputs)
        if mask is not None:
            _keras_private.SET_KERAS_MASK.get()(result, mask)
        return result

    def _scores_of(self, vectors: tf.Tensor) -> tf.Tensor:
        kernel = self._embeddings if self.tie_weights else self.reverse_embeddings
        dtype = self.reverse_dtype or self.compute_dtype
        kernel = keras.ops.cast(kernel, dtype)
        vectors = keras.ops.cast(vectors, dtype)
        scores = keras.ops.matmul(
            vectors, keras.ops.transpose(kernel) if self.tie_weights else kernel
        )
        if self.logit_soft_cap is not None:
            scores = keras.ops.tanh(scores / self.logit_soft_cap) * self.logit_soft_cap
        return scores

    def vectors_of(self, ids: tf.Tensor) -> tf.Tensor:
        table = self.table
        if table is None or not self.tie_weights or tf.executing_eagerly():
            return super().vectors_of(ids)
        # The step needs all rows for the scores, and gathers them once.
        rows = table_lookup.checked(table, tf.convert_to_tensor(ids))
        return tf.cast(tf.gather(table.read_whole(), rows), self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> None:
        # Vectors have none of their own; `call` sets that of ids.
        return None

    def compute_output_shape(
        self, input_shape: Any, reverse: bool = False
    ) -> tuple[int | None, ...]:
        if reverse:
            return (*input_shape[:-1], self.input_dim)
        return (*input_shape, self.output_dim)

    def compute_output_spec(self, inputs: Any, reverse: bool = False) -> keras.KerasTensor:
        shape = self.compute_output_shape(inputs.shape, reverse)
        dtype = self.reverse_dtype if reverse else None
        return keras.KerasTensor(shape, dtype=dtype or self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.update(
            {
                "tie_weights": self.tie_weights,
                "reverse_dtype": self.reverse_dtype,
                "logit_soft_cap": self.logit_soft_cap,
            }
        )
        return config
