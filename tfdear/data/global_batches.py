# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Datasets of global batches, cut into the ranks' shares.

[Note: Every rank cuts its rows out of the same global batches]
Each rank runs the whole input pipeline and keeps its rows of every global batch: rank r of P gets
rows [r * n / P, (r + 1) * n / P) of a batch of n. No element is lost or repeated, the global
batches are those of one process, ranks always agree on the number of steps, and the ranks' rows in
order are the batch. The price is that the work before batching is done on every rank (as with
TensorFlow's AutoShardPolicy.DATA); `strategy.distribute_datasets_from_function` avoids it.
"""

import functools
from typing import Any, TypeAlias, TypeVar

import tensorflow as tf

from tfdear.data import (
    autotuning,
    common_end,
    examples,
    first_batch,
    pipeline_order,
    sharding_policy,
)

_DISTRIBUTED = "_tfdear_distributed"
_IN_STEP = "_tfdear_in_step"

_Structure = TypeVar("_Structure")
# Known when the graph is made, or a scalar of it.
_Number: TypeAlias = int | tf.Tensor


def row_range(rows: _Number, rank: _Number, world_size: _Number) -> tuple[_Number, _Number]:
    """The rows [start, end) of a batch that a rank keeps; the engine cuts shards the same way."""
    return rank * rows // world_size, (rank + 1) * rows // world_size


def slice_rows(structure: _Structure, rank: _Number, world_size: _Number) -> _Structure:
    """Keeps a rank's rows of every tensor of a batch: dense, ragged or sparse ones, or of numpy."""

    def cut(component: Any) -> Any:
        if component is None or isinstance(component, tf.experimental.Optional):
            return component
        if isinstance(component, tf.SparseTensor):
            shape = component.dense_shape
            start, end = row_range(shape[0], rank, world_size)
            corner = tf.concat([[start], tf.zeros_like(shape[1:])], 0)
            size = tf.concat([[end - start], shape[1:]], 0)
            return tf.sparse.slice(component, corner, size)
        if isinstance(component, tf.RaggedTensor):
            rows = component.nrows()
        elif not tf.is_tensor(component):
            rows = len(component)
        elif component.shape.rank == 0:
            raise _no_batch(component)
        elif (rows := component.shape[0]) is None:
            rows = tf.shape(component, tf.int64)[0]
        start, end = row_range(rows, rank, world_size)
        return component[start:end]

    return tf.nest.map_structure(cut, structure)


def _no_batch(scalar: tf.Tensor) -> ValueError:
    return ValueError(
        "A dataset under DearStrategy must yield global batches: every tensor needs a first "
        "dimension to cut into the ranks' rows. Call `dataset.batch(...)` first, or use "
        f"`strategy.distribute_datasets_from_function`. Received a scalar tensor: {scalar}"
    )


def distribute(
    dataset: tf.data.Dataset,
    rank: int,
    world_size: int,
    gather: first_batch.Gather,
    *,
    gather_later: first_batch.Gather | None = None,
    number: int = 0,
) -> tf.data.Dataset:
    """The rank's share of a dataset of global batches.

    `gather_later`: for use within the pipeline; `number`: of the data set among those of the
    strategy. Raises a ValueError for a random order of what all ranks must share, and for files
    that cannot be divided among the ranks.
    """

    def end_together(own: tf.data.Dataset) -> tf.data.Dataset:
        lengths = functools.partial(_gather_integer, gather)
        return mark_distributed(common_end.end_together(own, lengths, number))

    if _is_distributed(dataset):
        # A transformation, such as a filter, may have left each rank another number of batches.
        return end_together(dataset)
    policies = tf.data.experimental.AutoShardPolicy
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy in (policies.FILE, policies.HINT):
        dataset = sharding_policy.shard(dataset, rank, world_size, gather)
        policy = policies.OFF
    if policy == policies.OFF:
        own = _split_batches(dataset, world_size)
        return end_together(own.prefetch(autotuning.READ_AHEAD))
    in_step = getattr(dataset, _IN_STEP, False)
    dataset, order = pipeline_order.make_deterministic(dataset)
    whole = _is_tuple(dataset)
    # A fixed number: whether to use AUTOTUNE is for the script to choose.
    calls = None if in_step else 1

    cut = functools.partial(slice_rows, rank=rank, world_size=world_size)

    # AutoGraph would take time and find nothing to convert.
    @tf.autograph.experimental.do_not_convert
    def own_rows(*batch: object) -> object:
        return cut(batch if whole else batch[0])

    def finish(shared: tf.data.Dataset) -> tf.data.Dataset:
        if in_step:
            return shared.with_options(_no_reading_ahead())
        return shared.prefetch(autotuning.READ_AHEAD)

    shared = finish(dataset.map(own_rows, calls, deterministic=None if in_step else True))
    comparison = first_batch.FirstBatch(
        dataset, cut, finish, calls, order, rank, gather, gather_later or gather
    )
    setattr(shared, first_batch.COMPARISON, comparison)
    return mark_distributed(shared)


def _gather_integer(gather: first_batch.Gather, value: int) -> list[int]:
    return [integers[0] for integers in gather([value])]


def read_in_step(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Marks a dataset whose source remembers its position, such as a Python generator.

    What was read ahead is lost when an iterator ends, and how much that is depends on timing: ranks
    that read ahead would go on from different positions in the next `fit`.
    """
    setattr(dataset, _IN_STEP, True)
    return dataset


def _no_reading_ahead() -> tf.data.Options:
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    return options


def mark_distributed(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Marks a dataset as a rank's own, so that Keras's `fit` does not cut it again."""
    setattr(dataset, _DISTRIBUTED, True)
    return dataset


def _is_distributed(dataset: tf.data.Dataset) -> bool:
    """Whether the dataset was made from one that is a rank's own already."""
    return getattr(dataset, _DISTRIBUTED, False) or any(map(_is_distributed, dataset._inputs()))


def _is_tuple(dataset: tf.data.Dataset) -> bool:
    """Whether `map` passes the components of an element as several arguments."""
    return type(dataset.element_spec) is tuple


def _split_batches(dataset: tf.data.Dataset, world_size: int) -> tf.data.Dataset:
    """A rank's own global batches, each as the steps of all ranks."""
    whole = _is_tuple(dataset)

    @tf.autograph.experimental.do_not_convert
    def split(*components: object) -> tf.data.Dataset:
        batch = components if whole else components[0]
        first = tf.nest.flatten(batch)[0]
        if first.shape.rank == 0:
            raise _no_batch(first)
        # A batch with fewer rows than there are ranks: no step is without examples.
        count = tf.minimum(examples.number_of_rows(first), world_size)
        pieces = tf.data.Dataset.range(count)
        return pieces.map(lambda piece: slice_rows(batch, piece, count))

    steps = dataset.flat_map(split)
    number = _number_of_steps(dataset, world_size)
    if number == tf.data.UNKNOWN_CARDINALITY:
        return steps
    return steps.apply(tf.data.experimental.assert_cardinality(number))


def _number_of_steps(dataset: tf.data.Dataset, world_size: int) -> int:
    """Of all batches together, as a cardinality: known if the rows of every batch are."""
    batches = int(dataset.cardinality().numpy())
    if batches <= 0:
        return batches
    while True:
        inputs = dataset._inputs()
        # What calls a function, such as `map`, may leave any number of rows.
        if len(inputs) != 1 or dataset._functions():
            return tf.data.UNKNOWN_CARDINALITY
        size = tf.get_static_value(getattr(dataset, "_batch_size", None))
        rows = int(inputs[0].cardinality().numpy())
        if size is not None and rows >= 0:
            last = min(size, rows - (batches - 1) * size)
            return int((batches - 1) * min(size, world_size) + min(last, world_size))
        if rows != batches:
            return tf.data.UNKNOWN_CARDINALITY
        dataset = inputs[0]
