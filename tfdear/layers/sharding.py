# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Divides the tables of a model that is built already, and makes them whole again."""

from typing import Any

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear.gradients import placement as placement_module
from tfdear.gradients import whole_table
from tfdear.layers import files, placing
from tfdear.layers.sharded_embedding import ShardedEmbedding


def shard(
    model: keras.Model,
    *,
    partition: str = "auto",
    exchange: str = "auto",
    updates: str = "exact",
) -> list[ShardedEmbedding]:
    """Divides the embedding tables of a finished model among the ranks, with their weights.

    Use it for a model that somebody else's code makes, after it was made (or its weights were
    loaded) in the strategy's scope and before it is trained. Its layers `keras.layers.Embedding`
    and `keras.layers.ReversibleEmbedding`, however deep in it, become `ShardedEmbedding` layers;
    classes that are derived from those stay what they are. Call it on all ranks: they get rank 0's
    weights. The model computes what it did before, and files of it are those of plain Keras.

    Without a `tfdear.DearStrategy` no table is divided.

    Args:
        model: A model that is built.
        partition: As in `ShardedEmbedding`, for all tables. Defaults to "auto".
        exchange: As there. Defaults to "auto".
        updates: As there. Defaults to "exact".

    Returns:
        The layers that it divided; none if there was nothing to divide.

    Raises:
        ValueError: An argument has a value that is not allowed, the model's optimizer has slots
            already, or a layer is not built, is quantized or has a low-rank adaptation.

    Reference: As `ShardedEmbedding`.

    Example:

    >>> strategy = tfdear.DearStrategy()
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((3,), dtype="int32"),
    ...                               keras.layers.Embedding(1000, 16, name="words")])
    >>> len(tfdear.layers.shard(model))
    1
    """
    choices = placing.Choices(partition, exchange, updates)
    plain = [layer for layer in _layers(model) if type(layer) in files.sharded_classes()]
    _check(model, plain)
    for layer in plain:
        layer.__class__ = files.sharded_classes()[type(layer)]
        layer.combiner = None
        layer.partition, layer.exchange = choices.partition, choices.exchange
        layer.updates = choices.updates
        with model.distribute_strategy.scope():
            for variable in layer.weights:
                _divide(layer, variable)
    _forget_functions(model)
    return plain


def unshard(model: keras.Model) -> list[keras.layers.Embedding]:
    """Makes every rank hold the whole tables of a model, in plain layers of Keras.

    Use it to give a trained model to code that needs plain layers, on all ranks; files of the model
    are plain without it. The optimizer's slots are divided as the tables are: compile the model
    again first.

    Args:
        model: A model with `ShardedEmbedding` layers.

    Returns:
        The layers that it changed: all without a `combiner`.

    Raises:
        ValueError: The model's optimizer has slots.

    Example:

    >>> with tfdear.DearStrategy().scope():
    ...     model = keras.Sequential([keras.Input((3,), dtype="int32"),
    ...                               tfdear.layers.ShardedEmbedding(1000, 16)])
    >>> type(tfdear.layers.unshard(model)[0]).__name__
    'Embedding'
    """
    plain = {sharded: plain for plain, sharded in files.sharded_classes().items()}
    sharded = [layer for layer in _layers(model) if type(layer) in plain and layer.combiner is None]
    _check(model, sharded)
    values = {id(variable): variable.numpy() for layer in sharded for variable in layer.weights}
    if sharded and hasattr(model.distribute_strategy, "barrier"):
        # A rank that goes on, and may end, holds parts that others are reading.
        model.distribute_strategy.barrier()
    for layer in sharded:
        layer.__class__ = plain[type(layer)]
        for name in ("combiner", "partition", "exchange", "updates"):
            delattr(layer, name)
        with model.distribute_strategy.scope():
            for variable in layer.weights:
                _replace(variable, values[id(variable)])
    _forget_functions(model)
    return sharded


def _layers(model: keras.Model) -> list[Any]:
    return _keras_private.FLATTEN_LAYERS.get()(model, include_self=False)


def _check(model: keras.Model, layers: list[Any]) -> None:
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and optimizer.built:
        raise ValueError(
            f"The optimizer of model '{model.name}' has slots for the tables as they are. Do this "
            "before the model is trained, or compile it again with a new optimizer first."
        )
    for layer in layers:
        if not layer.built:
            raise ValueError(
                f"Layer '{layer.name}' is not built: it has no table yet. Call the model on a "
                "batch, or `build` it, first."
            )
        if layer.lora_enabled or layer.quantization_mode is not None:
            raise ValueError(
                f"Layer '{layer.name}' is quantized or has a low-rank adaptation, which a sharded "
                "table has not."
            )
        with model.distribute_strategy.scope():
            placing.check_type(f"layer '{layer.name}'", layer.variable_dtype)
    # `distribute_strategy` is the current one for a model that has none.
    if layers and placing.is_in_scope() and getattr(model, "_distribute_strategy", None) is None:
        raise ValueError(
            f"Model '{model.name}' was made outside of the scope of the DearStrategy. Make it, or "
            "load it, in `with strategy.scope():`."
        )


def _divide(layer: ShardedEmbedding, variable: keras.Variable) -> None:
    placement = placing.place(
        f"layer '{layer.name}'", tuple(variable.shape), layer.choices(), variable.dtype
    )
    if placement is not None:
        broadcast = tf.distribute.get_strategy().extended.broadcast_value
        value = broadcast(tf.convert_to_tensor(variable.value))
        with placement_module.of_new_variables(placement):
            _replace(variable, whole_table.part_of(placement, value))


def _replace(variable: keras.Variable, value: Any) -> None:
    """Gives a variable of Keras a new variable of TensorFlow; whoever holds it notices nothing."""

    # Refers to `variable`, by which the new one gets its path.
    def initial_value() -> Any:
        return tf.cast(value, variable.dtype)

    _keras_private.INITIALIZE_VARIABLE.get()(variable, initial_value)


def _forget_functions(model: keras.Model) -> None:
    # They use the variables of before.
    model.train_function = model.test_function = model.predict_function = None
