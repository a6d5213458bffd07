# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""An embedding layer whose table is divided among the ranks."""

from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tfdear.gradients import initial_part, table_lookup
from tfdear.gradients import placement as placement_module
from tfdear.gradients.sharded_variable import ShardedVariable
from tfdear.integrations.keras import table_files
from tfdear.layers import files, pooling
from tfdear.planning import partition as partition_module

_Ids: TypeAlias = tf.Tensor | tf.RaggedTensor | tf.SparseTensor

_PARTITIONS = ("auto", *partition_module.KINDS)
_EXCHANGES = ("auto", "all_to_all", "all_gather")
_UPDATES = ("exact", "touched")


@files.stands_in_for(keras.layers.Embedding)
@keras.saving.register_keras_serializable("tfdear")
class ShardedEmbedding(keras.layers.Embedding):
    """Turns ids into vectors, with a table of which every rank holds a part.

    Use it for a table that is large beside the rows that a batch touches, or too large for one
    rank. To Keras it is one variable of the whole table's shape. Each rank holds its columns of all
    rows, or whole rows, and so for the optimizer's slots; a lookup gets vectors from the ranks that
    hold them, and the gradient's rows go back to those. A word travels once per rank and step. The
    result is that of one process which trains with the table's dense gradient.

    Without a `tfdear.DearStrategy` it is `keras.layers.Embedding`. Call the layer on all ranks,
    each with the ids of its own examples.

    Args:
        input_dim: Rows of the table; ids are from 0 to `input_dim - 1`.
        output_dim: Columns of the table, the length of a vector.
        embeddings_initializer: As in `keras.layers.Embedding`. A table larger than 64 MiB is drawn
            in blocks of that size, so that no rank makes all of it.
        embeddings_regularizer: As there.
        embeddings_constraint: As there, for constraints that change every element by itself.
        mask_zero: As there.
        weights: As there.
        lora_rank: Must be None.
        combiner: None, or how the vectors of the ids in the last dimension are combined: "sum",
            "mean", or "sqrtn" (the sum divided by the square root of the sum of squared weights).
            Then `call(ids, weights=None)` takes a weight for every id.
        partition: "column" (every rank has its columns of all rows), "row" (a rank has the rows
            whose number is its own, modulo the number of ranks) or "auto" (rows if a rank would
            have less than 64 bytes of a row's columns). Defaults to "auto".
        exchange: "all_to_all" divides the table; with "all_gather" every rank has all of it, and
            the rows of gradients are gathered. "auto" divides it. Defaults to "auto".
        updates: "exact" updates every row in every step, as a dense gradient does: momentum moves
            rows that no word of the step touched. "touched" updates only rows of the step's words,
            as PyTorch's SparseAdam does: other arithmetic. Either costs what the step's rows cost.
            Defaults to "exact".
        **kwargs: Those of `keras.layers.Layer`.

    Input: integers of any shape: a tensor, `tf.RaggedTensor` or, with a combiner,
    `tf.SparseTensor`.

    Output: for ids of shape [...], vectors [..., output_dim]; with a combiner, the last dimension
    of the ids is gone.

    Raises:
        ValueError: An argument is none of those named above.
        tf.errors.InvalidArgumentError: An id is not a row of the table; on all ranks.

    Reference: "EmbRace: Accelerating Sparse Communication for Distributed Training of Deep Neural
    Networks" (Li et al., ICPP 2022), section 4.1.

    Example:

    >>> strategy = tfdear.DearStrategy()
    >>> with strategy.scope():
    ...     layer = tfdear.layers.ShardedEmbedding(1000, 16)
    >>> layer(tf.constant([[1, 2, 3]])).shape
    TensorShape([1, 3, 16])
    """

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
        combiner: str | None = None,
        partition: str = "auto",
        exchange: str = "auto",
        updates: str = "exact",
        **kwargs: Any,
    ):
        _check_choice("combiner", combiner, (None, *pooling.COMBINERS))
        _check_choice("partition", partition, _PARTITIONS)
        _check_choice("exchange", exchange, _EXCHANGES)
        _check_choice("updates", updates, _UPDATES)
        if lora_rank is not None:
            raise ValueError(
                "ShardedEmbedding has no low-rank adaptation. Use keras.layers.Embedding, or "
                f"`lora_rank=None`. Received: lora_rank={lora_rank}"
            )
        self.combiner = combiner
        self.partition = partition
        self.exchange = exchange
        self.updates = updates
        super().__init__(
            input_dim,
            output_dim,
            embeddings_initializer=embeddings_initializer,
            embeddings_regularizer=embeddings_regularizer,
            embeddings_constraint=embeddings_constraint,
            mask_zero=mask_zero,
            weights=weights,
            **kwargs,
        )

    OWN_ARGUMENTS = ("combiner", "partition", "exchange", "updates")
    built: bool

    def build(self, input_shape: Any = None) -> None:
        if self.built:
            return
        placement = self._placement()
        if placement is None:
            super().build(input_shape)
            return
        extended = tf.distribute.get_strategy().extended
        with placement_module.of_new_variables(placement):
            self._embeddings = self.add_weight(
                shape=placement.shape,
                initializer=initial_part.PartInitializer(
                    self.embeddings_initializer, placement, extended.broadcast_value
                ),
                name="embeddings",
                regularizer=self.embeddings_regularizer,
                constraint=self.embeddings_constraint,
                trainable=True,
            )
        self.built = True

    def _placement(self) -> placement_module.Placement | None:
        """How the table is divided; None: there is no DearStrategy."""
        extended = tf.distribute.get_strategy().extended
        if not getattr(extended, "is_dear", False):
            return None
        ranks = 1 if self.exchange == "all_gather" else extended.world_size
        rank = 0 if ranks == 1 else extended.rank
        partition = partition_module.choose(self.partition, self.input_dim, self.output_dim, ranks)
        label = f"layer '{self.name}' (table of {self.input_dim} x {self.output_dim})"
        return placement_module.Placement(partition, rank, label, self.updates == "touched")

    @property
    def _table(self) -> ShardedVariable | None:
        value = getattr(self._embeddings, "_value", None)
        return value if isinstance(value, ShardedVariable) else None

    def call(self, ids: _Ids, weights: Any = None) -> tf.Tensor | tf.RaggedTensor:
        if weights is not None and self.combiner is None:
            raise ValueError("ShardedEmbedding takes `weights` only with a `combiner`.")
        if isinstance(ids, keras.KerasTensor) or self._table is None and self.combiner is None:
            return super().call(ids)
        if self.combiner is not None:
            return pooling.pool(self._vectors_of, ids, weights, self.combiner)
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(self._vectors_of(ids.flat_values))
        if isinstance(ids, tf.SparseTensor):
            raise ValueError(
                "ShardedEmbedding takes a sparse tensor of ids only with a `combiner`. Use "
                "`tf.sparse.to_dense(ids)`, or a ragged tensor."
            )
        return self._vectors_of(ids)

    def _vectors_of(self, ids: tf.Tensor) -> tf.Tensor:
        ids = tf.convert_to_tensor(ids)
        if not ids.dtype.is_integer or ids.dtype == tf.uint64:
            ids = tf.cast(ids, tf.int32)
        dtype = tf.as_dtype(self.compute_dtype)
        if self._table is None:
            return tf.cast(tf.gather(self._embeddings.value, ids), dtype)
        return table_lookup.look_up(self._table, ids, dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        if self.combiner is not None:
            return (*input_shape[:-1], self.output_dim)
        return super().compute_output_shape(input_shape)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.update(files.own_part(self))
        return config

    def get_build_config(self) -> dict[str, Any]:
        return files.build_config(self, super().get_build_config())

    def save_own_variables(self, store: Any) -> None:
        if self.built and self._table is not None:
            table_files.write(store, "0", self._table)
        else:
            super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        if self.built and self._table is not None and "0" in store:
            table_files.read(store, "0", self._table)
        else:
            super().load_own_variables(store)


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        allowed = ", ".join(map(repr, choices))
        raise ValueError(f"`{name}` must be one of {allowed}. Received: {name}={value!r}")
