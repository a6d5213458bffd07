# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The epochs of `fit` are those of the caches that it reads, also where it is resumed in one.

[Note: resumed within an epoch]
`BackupAndRestore(save_freq=n)` restores weights and the epoch. The steps of that epoch which these
weights have seen are neither read nor counted again: the cache begins behind them, and so do the
numbers that callbacks get.
"""

import inspect
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.data import training_position
from tfdear.data.cached_batches import CachedBatches

SEAMS = seams.Seams()


def sources_of(dataset: object) -> Iterator[CachedBatches]:
    """The data sets of caches from which a data set is made."""
    if isinstance(dataset, CachedBatches):
        yield dataset
    elif isinstance(dataset, tf.data.Dataset):
        for source in dataset._inputs():
            yield from sources_of(source)


class _Epochs(keras.callbacks.Callback):
    """Lets the epochs of caches be those of `fit`. Comes last, when others have restored."""

    def __init__(
        self,
        dataset: tf.data.Dataset,
        steps_per_epoch: int | None,
        others: Sequence[keras.callbacks.Callback],
    ):
        super().__init__()
        self._dataset = dataset
        self._sources = list(sources_of(dataset))
        self._steps_per_epoch = steps_per_epoch
        self._others = others
        self._resumed: tuple[int, int] | None = None  # An epoch, and the steps of it that are done.
        self._begun = False

    def on_train_begin(self, logs: object = None) -> None:
        """Called after weights were restored."""
        self._resume()

    def _resume(self) -> None:
        for callback in self._others:
            if not isinstance(callback, keras.callbacks.BackupAndRestore):
                continue
            if self.model._initial_epoch is None:
                continue  # It has not restored anything.
            position = None if callback.save_freq == "epoch" else _position(callback)
            if position is None:
                continue
            epoch, batch = position
            at_once = self.model.steps_per_execution
            done = (batch // at_once + 1) * at_once
            if not _has_batches_of(self._dataset):
                logging.warning(
                    "tfdear: training was interrupted in an epoch, which begins again, since a "
                    "step of this data set is not a batch of the cache."
                )
                done = 0
            elif done >= self._steps:
                epoch, done = epoch + 1, 0
            self._resumed = (epoch, done)
            callback._current_epoch, callback._last_batch_seen = epoch, max(done - 1, 0)
            self.model._initial_epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Called before the first batch of the epoch is read."""
        if self._begun and self._steps_per_epoch is not None:
            return  # One iterator goes through all epochs, and counts its own.
        done = 0
        for source in self._sources:
            if self._resumed is not None and self._resumed[0] == epoch:
                done = self._resumed[1]
            elif not self._begun and source.start[0] == epoch:
                done = source.start[1]
            if self._steps_per_epoch is None:
                source.reader.begin_with(epoch, done)
            else:
                steps = max(source.reader.steps, 1)
                source.reader.begin_with(*divmod(epoch * self._steps_per_epoch + done, steps))
            source.steps_done = done
        self._begun = True

    @property
    def _steps(self) -> int:
        return self._steps_per_epoch or self._sources[0].reader.steps


def _position(callback: keras.callbacks.BackupAndRestore) -> tuple[int, int] | None:
    """The epoch and the batch of the weights that a callback has restored; None: it has none."""
    if (position := training_position.read(callback._weights_path)) is not None:
        return position
    if not os.path.exists(callback._training_metadata_path):
        return None
    with open(callback._training_metadata_path, encoding="utf-8") as file:
        metadata = json.load(file)
    return metadata["epoch"], metadata["batch"]


def _has_batches_of(dataset: tf.data.Dataset) -> bool:
    """Whether every element is made from one batch of a cache."""
    if isinstance(dataset, CachedBatches):
        return dataset.batched
    inputs = dataset._inputs()
    if len(inputs) != 1 or not _has_batches_of(inputs[0]):
        return False
    count, whole = (int(each.cardinality()) for each in (dataset, inputs[0]))
    # As often as the one before it, or repeated.
    return count == tf.data.INFINITE_CARDINALITY or (whole > 0 and count % whole == 0)


@SEAMS.wrap(_keras_private.FIT)
def _fit(original: seams.Original, model: Any, *args: Any, **kwargs: Any) -> object:
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    given = bound.arguments
    sources = list(sources_of(given.get("x")))
    if not sources:
        return original(model, *args, **kwargs)
    callbacks = given.get("callbacks")
    whole_list = callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else None
    others = tf.nest.flatten(callbacks or []) if whole_list is None else whole_list.callbacks
    epochs = _Epochs(given["x"], given.get("steps_per_epoch"), list(others))
    model._initial_epoch = None  # Of an earlier `fit` that was resumed, which Keras keeps.
    caches = list({id(source.owner): source.owner for source in sources}.values())
    for callback in others:
        # Those of `tfdear.callbacks` that want to know.
        if (tell := getattr(callback, "set_data_caches", None)) is not None:
            tell(caches)
    if whole_list is None:
        given["callbacks"] = [*others, epochs]
    else:
        whole_list.append(epochs)
    return original(*bound.args, **bound.kwargs)


@SEAMS.wrap(_keras_private.ENUMERATE_STEPS)
def _enumerate_steps(original: seams.Original, iterator: Any) -> Iterator[tuple]:
    # Runs when the epoch's first step is asked for.
    adapter = iterator.data_adapter
    is_dataset = isinstance(adapter, _keras_private.TF_DATASET_ADAPTER.get())
    sources = list(sources_of(adapter._dataset)) if is_dataset else []
    done = max((source.steps_done for source in sources), default=0)
    for source in sources:
        source.steps_done = 0
    for step in original(iterator):
        if step[0] + iterator.steps_per_execution > done:
            yield step
