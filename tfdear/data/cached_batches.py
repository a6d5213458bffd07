# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The data sets of a cache, and how `fit` tells them its epochs."""

import inspect
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.engine import library
from tfdear.engine.example_store import ExampleReader

SEAMS = seams.Seams()


class CachedBatches(tf.data.Dataset):
    """Batches of a cache, of which this rank has its rows. Each iteration is an epoch.

    Args:
        owner: What must live as long as the data set.
        reader: Which examples are in which batch.
        spec: Of a batch.
        read_ahead: Batches whose examples are asked for before the batch is.
        positions: Whether the last component has the places of the rows.
    """

    def __init__(
        self,
        owner: object,
        reader: ExampleReader,
        spec: object,
        read_ahead: int,
        positions: bool,
    ):
        self._owner = owner
        self.reader = reader
        self._spec = spec
        specs = tf.nest.flatten(spec)
        super().__init__(
            library.load().dear_cached_batches_dataset(
                reader.number,
                read_ahead,
                positions=positions,
                output_types=[component.dtype for component in specs],
                output_shapes=[component.shape for component in specs],
            )
        )

    def _inputs(self) -> list[tf.data.Dataset]:
        return []

    @property
    def element_spec(self) -> object:
        return self._spec


def sources_of(dataset: object) -> Iterator[CachedBatches]:
    """The data sets of caches from which a data set is made."""
    if isinstance(dataset, CachedBatches):
        yield dataset
    elif isinstance(dataset, tf.data.Dataset):
        for source in dataset._inputs():
            yield from sources_of(source)


class _Epochs(keras.callbacks.Callback):
    """Lets the epochs of caches be those of `fit`."""

    def __init__(self, sources: list[CachedBatches], one_iterator: bool, initial_epoch: int):
        super().__init__()
        self._sources, self._one_iterator = sources, one_iterator
        self._initial_epoch = initial_epoch

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Called before the first batch of the epoch is read."""
        # With `steps_per_epoch` one iterator goes through all epochs, and counts its own.
        if self._one_iterator and epoch != self._initial_epoch:
            return
        for source in self._sources:
            source.reader.begin_with(epoch)


@SEAMS.wrap(_keras_private.FIT)
def _fit(original: seams.Original, model: Any, *args: Any, **kwargs: Any) -> object:
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    given = bound.arguments
    sources = list(sources_of(given.get("x")))
    if not sources:
        return original(model, *args, **kwargs)
    one_iterator = given.get("steps_per_epoch") is not None
    epochs = _Epochs(sources, one_iterator, given.get("initial_epoch", 0))
    callbacks = given.get("callbacks")
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.append(epochs)
    else:
        given["callbacks"] = [epochs, *tf.nest.flatten(callbacks or [])]
    return original(*bound.args, **bound.kwargs)
