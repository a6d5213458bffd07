# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""An embedding layer whose table is divided among the ranks."""

from typing import Any, TypeAlias

import keras
import tensorflow as tf

from tfdear.gradients import bags, initial_part, table_lookup, whole_table
from tfdear.gradients import placement as placement_module
from tfdear.gradients.sharded_variable import ShardedVariable
from tfdear.integrations.keras import table_files
from tfdear.layers import files, placing, pooling

_Ids: TypeAlias = tf.Tensor | tf.RaggedTensor | tf.SparseTensor


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
        mask_zero: As there. With a combiner, the id 0 is left out.
        weights: As there.
        lora_rank: Must be None.
        combiner: None, or how the vectors of the ids in the last dimension are combined: "sum",
            "mean", or "sqrtn" (the sum divided by the square root of the sum of squared weights).
            Then `call(ids, weights=None)` takes a weight for every id. Without weights, ranks that
            hold columns combine theirs, in steps in which that is fewer bytes.
        partition: "column" (every rank has its columns of all rows), "row" (a rank has the rows
            whose number is its own, modulo the number of ranks) or "auto" (rows if a rank would
            have less than 64 bytes of a row's columns). Defaults to "auto".
        exchange: "all_to_all" divides the table; with "all_gather" every rank has all of it, and
            the rows of gradients are gathered; with "all_reduce" they are summed on their way, as
            dense gradients are. "auto" does as the strategy's `embeddings` says: by default it
            divides the table, unless starts of collectives take very long. All give the same bits.
            Defaults to "auto".
        updates: "exact" updates every row in every step, as a dense gradient does: momentum moves
            rows that no word of the step touched. "touched" updates only rows of the step's words,
            as PyTorch's SparseAdam does: other arithmetic. With gradient accumulation these are
            the words of all steps since the last update. Averages (`use_ema`) follow in all rows.
            Either costs what the step's rows cost. Defaults to "exact".
        reversible: Whether it is `keras.layers.ReversibleEmbedding`: `call(vectors, reverse=True)`
            yields scores of all ids. Then a step gathers all rows, in the forward pass, and "auto"
            divides the table by row. Takes that layer's `tie_weights` (True), `reverse_dtype`
            (None) and `logit_soft_cap` (None), and no combiner. Defaults to False.
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
        reversible: bool = False,
        **kwargs: Any,
    ):
        del reversible  # See `__new__`.
        placing.check_choice("combiner", combiner, (None, *pooling.COMBINERS))
        choices = placing.Choices(partition, exchange, updates)
        if lora_rank is not None:
            self.enable_lora(lora_rank)
        self.combiner = combiner
        self.partition = choices.partition
        self.exchange = choices.exchange
        self.updates = choices.updates
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

    def __new__(cls, *args: Any, reversible: bool = False, **kwargs: Any) -> Any:
        if reversible and cls is ShardedEmbedding:
            # Derived from this class.
            from tfdear.layers import reversible_embedding

            cls = reversible_embedding.ShardedReversibleEmbedding
        return super().__new__(cls, *args, **kwargs)

    OWN_ARGUMENTS: tuple[str, ...] = ("combiner", "partition", "exchange", "updates")
    built: bool

    def build(self, input_shape: Any = None) -> None:
        if self.built:
            return
        if placing.is_in_scope():
            self._embeddings = self.add_table(
                (self.input_dim, self.output_dim),
                "embeddings",
                self.embeddings_initializer,
                regularizer=self.embeddings_regularizer,
                constraint=self.embeddings_constraint,
            )
            self.built = True
        else:
            super().build(input_shape)

    def enable_lora(self, rank: int, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise ValueError(
            "ShardedEmbedding has no low-rank adaptation. Use keras.layers.Embedding, or "
            f"`lora_rank=None`. Received: a rank of {rank}"
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not args and "inputs" in kwargs:
            args = (kwargs.pop("inputs"),)  # The name of `keras.layers.Embedding`.
        return super().__call__(*args, **kwargs)

    def add_table(
        self, shape: tuple[int, int], name: str, initializer: Any, **kwargs: Any
    ) -> keras.Variable:
        """A weight of which every rank holds a part, if there is a DearStrategy."""
        label = f"layer '{self.name}'"
        placement = placing.place(label, shape, self.choices(), self.variable_dtype)
        if placement is not None:
            broadcast = tf.distribute.get_strategy().extended.broadcast_value
            initializer = initial_part.PartInitializer(initializer, placement, broadcast)
        with placement_module.of_new_variables(placement):
            return self.add_weight(
                shape=shape, initializer=initializer, name=name, trainable=True, **kwargs
            )

    def choices(self) -> placing.Choices:
        """What was chosen for the table."""
        return placing.Choices(self.partition, self.exchange, self.updates)

    @property
    def table(self) -> ShardedVariable | None:
        """The table in parts; None: there is no DearStrategy."""
        return table_files.table_of(self._embeddings)

    @property
    def _is_whole(self) -> bool:
        # A model that is built by its first batch infers shapes before the table exists.
        exists = getattr(self._embeddings, "_value", None) is not None
        return exists and self.table is None

    def call(self, ids: _Ids, weights: Any = None) -> tf.Tensor | tf.RaggedTensor:
        if weights is not None and self.combiner is None:
            raise ValueError("ShardedEmbedding takes `weights` only with a `combiner`.")
        if isinstance(ids, keras.KerasTensor):
            return self.compute_output_spec(ids, weights)
        if self._is_whole and self.combiner is None:
            return super().call(ids)
        if self.combiner is not None:
            return pooling.pool(
                self.vectors_of,
                ids,
                weights,
                self.combiner,
                leave_out_zero=self.mask_zero,
                sums_of=self._sums_of if self._is_by_column else None,
            )
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(self.vectors_of(ids.flat_values))
        if isinstance(ids, tf.SparseTensor):
            raise ValueError(
                "ShardedEmbedding takes a sparse tensor of ids only with a `combiner`. Use "
                "`tf.sparse.to_dense(ids)`, or a ragged tensor."
            )
        return self.vectors_of(ids)

    @property
    def _is_by_column(self) -> bool:
        """Whether other ranks have columns of the table: they can pool vectors."""
        if self.table is None:
            return False
        partition = self.table.placement.partition
        return partition.ranks > 1 and partition.kind == "column"

    def _sums_of(self, ids: tf.Tensor, bag_of: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        assert self.table is not None
        return table_lookup.sums_of_bags(
            self.table,
            tf.convert_to_tensor(ids),
            bags.Bags(bag_of, count),
            tf.as_dtype(self.compute_dtype),
        )

    def vectors_of(self, ids: tf.Tensor) -> tf.Tensor:
        """The vectors of ids of any shape, for `call`."""
        return self.look_up(tf.convert_to_tensor(ids))

    def look_up(self, ids: tf.Tensor, common: int = 0) -> tf.Tensor:
        """The vectors of ids of any shape, from the ranks that hold them.

        `common`: this many of the first are different ids, and the same on all ranks, or it is an
        error.
        """
        dtype = tf.as_dtype(self.compute_dtype)
        table = self.table
        if table is not None:
            return table_lookup.look_up(table, ids, dtype, common)
        if not ids.dtype.is_integer or ids.dtype == tf.uint64:
            ids = tf.cast(ids, tf.int32)
        if self._is_whole:
            return tf.cast(tf.gather(self._embeddings.value, ids), dtype)
        return tf.zeros_like(ids, dtype)[..., tf.newaxis] * tf.zeros(self.output_dim, dtype)

    def block(self, begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """Rows of the table, from `begin` to `end`, without gradients; call it on all ranks."""
        table = self.table
        if table is None:
            return tf.stop_gradient(self._embeddings.value[begin:end])
        return whole_table.read_block(table, begin, end)

    def compute_mask(self, inputs: _Ids, mask: Any = None) -> tf.Tensor | None:
        # What the padding is has no meaning for vectors that were combined.
        return None if self.combiner is not None else super().compute_mask(inputs, mask)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        if self.combiner is not None:
            return (*input_shape[:-1], self.output_dim)
        return super().compute_output_shape(input_shape)

    def compute_output_spec(self, ids: Any, weights: Any = None) -> keras.KerasTensor:
        if self.combiner is None:
            return super().compute_output_spec(ids)
        return keras.KerasTensor(self.compute_output_shape(ids.shape), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.update(files.own_part(self))
        return config

    def get_build_config(self) -> dict[str, Any]:
        return files.build_config(self, super().get_build_config())

    def save_own_variables(self, store: Any) -> None:
        tables = self._tables() if self.built else {}
        if not tables:
            super().save_own_variables(store)
        for entry, table in tables.items():
            table_files.write(store, entry, table)

    def load_own_variables(self, store: Any) -> None:
        tables = self._tables() if self.built else {}
        if not tables or set(store.keys()) != tables.keys():
            super().load_own_variables(store)
            return
        for entry, table in tables.items():
            table_files.read(store, entry, table)

    def _tables(self) -> dict[str, ShardedVariable]:
        """The tables in parts, by their entries in files."""
        tables = [table_files.table_of(variable) for variable in self.weights]
        return {str(entry): table for entry, table in enumerate(tables) if table is not None}
