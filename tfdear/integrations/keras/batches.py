# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Batches: results of the replicas concatenated, single batches cut, generators read in step.

`predict` concatenates the replicas' rows only for strategies that Keras knows, and the `*_on_batch`
methods pass the batch to `strategy.run` without distributing it.
"""

from typing import Any

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear._private import tensorflow as _tf_private
from tfdear.data import global_batches, iterators
from tfdear.integrations.keras import lookup

SEAMS = seams.Seams()


@SEAMS.wrap(_keras_private.REDUCE_PER_REPLICA)
def _reduce_per_replica(
    original: seams.Original,
    values: object,
    strategy: tf.distribute.Strategy | None,
    reduction: str,
) -> object:
    dear = lookup.dear_strategy(strategy)
    if dear is None or reduction != "concat":
        return original(values, strategy, reduction)
    return tf.nest.map_structure(lambda rows: dear.gather(rows, axis=0), values)


@SEAMS.wrap(
    _keras_private.TRAIN_ON_BATCH, _keras_private.TEST_ON_BATCH, _keras_private.PREDICT_ON_BATCH
)
def _on_batch(
    original: seams.Original, model: keras.Model, x: object, *args: Any, **kwargs: Any
) -> object:
    strategy = lookup.dear_strategy(model.distribute_strategy)
    if strategy is None:
        return original(model, x, *args, **kwargs)

    def own_rows(structure: object) -> object:
        return global_batches.slice_rows(structure, strategy.rank, strategy.world_size)

    with_rows = {"y", "sample_weight"}
    kwargs = {
        name: own_rows(value) if name in with_rows else value for name, value in kwargs.items()
    }
    return original(model, *map(own_rows, (x, *args[:2])), *args[2:], **kwargs)


@SEAMS.wrap(_keras_private.EPOCH_ITERATOR_INIT)
def _read_as_distributed(
    original: seams.Original,
    iterator: Any,
    distribute_strategy: tf.distribute.Strategy | None = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    # Keras reads a generator ahead of the training, and goes on with it in the next call. It counts
    # the batches of the given dataset, while a rank's own data may have more. And with a number of
    # steps it goes through several epochs with one iterator.
    original(iterator, distribute_strategy, *args, **kwargs)
    strategy = lookup.dear_strategy(distribute_strategy)
    if strategy is None:
        return
    adapter = iterator.data_adapter
    if isinstance(adapter, _keras_private.GENERATOR_DATA_ADAPTER.get()):
        source = adapter.get_tf_dataset()
        if isinstance(source, _tf_private.PREFETCH_DATASET.get()):
            (source,) = source._inputs()
        iterator._distributed_dataset = strategy.experimental_distribute_dataset(
            global_batches.read_in_step(source)
        )
    if iterator.steps_per_epoch:
        iterator._distributed_dataset = iterators.compare_every(
            iterator._distributed_dataset, iterator.steps_per_epoch
        )
    if isinstance(adapter, _keras_private.TF_DATASET_ADAPTER.get()):
        adapter._dataset = iterator._distributed_dataset
        iterator._num_batches = adapter.num_batches
