# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The epochs of `fit` are those of the caches that it reads, also where it is resumed in one.

[Note: resumed within an epoch]
`BackupAndRestore(save_freq=n)` restores weights and the epoch. The steps of that epoch which these
weights have seen are neither read nor counted again: the cache begins behind them, and so do the
numbers that callbacks get. Where batches have another size than before, as with another number of
ranks, those examples count. Where their order is another one, the epoch begins again.
"""

import functools
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from tfdear._private import keras as _keras_private
from tfdear._private import seams
from tfdear.data import cached_pipelines, training_position
from tfdear.data.cached_batches import CachedBatches
from tfdear.data.training_position import Batches, Position

SEAMS = seams.Seams()


class _Epochs(keras.callbacks.Callback):
    """Lets the epochs of caches be those of `fit`. Comes last, when others have restored."""

    def __init__(
        self,
        dataset: tf.data.Dataset,
        steps_per_epoch: int | None,
        others: Sequence[keras.callbacks.Callback],
    ):
        super().__init__()
        self._sources = cached_pipelines.epochs_of(dataset)
        self._batches: Batches | None = None  # None: steps are something else.
        if cached_pipelines.has_batches_of(dataset):
            ((source, _),) = self._sources
            self._batches = Batches(source.reading.batch_size, source.reader.order)
        self._steps_per_epoch = steps_per_epoch
        self._backups = [c for c in others if isinstance(c, keras.callbacks.BackupAndRestore)]
        self._resumed: tuple[int, int] | None = None  # An epoch, and the steps of it that are done.
        self._begun = False

    def on_train_begin(self, logs: object = None) -> None:
        """Called after weights were restored."""
        for callback in self._backups:
            self._resume(callback)
            # What it saves says what a step is.
            training_position.batches.pop(callback, None)
            if self._batches is not None:
                training_position.batches[callback] = self._batches
            # Saving by several ranks does it, and is wrapped already.
            seams.replace(callback, "_save_model", functools.partial(_save, callback))

    def _resume(self, callback: keras.callbacks.BackupAndRestore) -> None:
        if self.model._initial_epoch is None and os.path.exists(callback._training_metadata_path):
            return  # It has not restored anything.
        position = training_position.restored(callback)
        if position is None:
            return
        epoch, done = position.epoch, self._steps_behind(position)
        if done and done >= self._steps_of_epoch:
            epoch, done = epoch + 1, 0
        self._resumed = (epoch, done)
        callback._current_epoch, callback._last_batch_seen = epoch, max(done - 1, 0)
        self.model._initial_epoch = epoch

    def _steps_behind(self, position: Position) -> int:
        """The steps of an epoch that restored weights have seen; 0 if that cannot be said."""
        before, now = position.batches, self._batches
        if position.steps == 0:
            return 0
        if now is None:
            reason = "a step of this data set is not a batch of the cache, in its order"
        elif before is None or before == now:
            return position.steps
        elif before.order != now.order:
            reason = (
                "the order of examples is another one than before: it follows from the seed and "
                'the number of examples, and with `order="node"` from the ranks of the nodes'
            )
        elif self._steps_per_epoch is not None:
            reason = (
                f"batches have {now.size} examples of all ranks instead of {before.size}, and "
                "`steps_per_epoch` says what an epoch is"
            )
        else:
            return _in_other_batches(self._sources[0][0], position.steps, before.size)
        logging.warning(
            "tfdear: training was interrupted in an epoch, which begins again, since %s.", reason
        )
        return 0

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Called before the first batch of the epoch is read."""
        for callback in self._backups:
            # Keras counts from 0, also where `initial_epoch` is another.
            callback._current_epoch = epoch
        if self._begun and self._steps_per_epoch is not None:
            return  # One iterator goes through all epochs, and counts its own.
        done = 0
        for source, epochs in self._sources:
            if self._resumed is not None and self._resumed[0] == epoch:
                done = self._resumed[1]
            elif not self._begun and source.reading.start[0] == epoch:
                done = source.reading.start[1]
            # An epoch of Keras may be several of the cache, or a part of one.
            steps = max(source.reader.steps, 1)
            whole = steps * epochs if self._steps_per_epoch is None else self._steps_per_epoch
            source.begin_with(*divmod(epoch * whole + done, steps))
            source.steps_done = done
        self._begun = True

    @property
    def _steps_of_epoch(self) -> int:
        source, epochs = self._sources[0]
        return self._steps_per_epoch or source.reader.steps * epochs


def _in_other_batches(source: CachedBatches, steps: int, batch_size: int) -> int:
    """As many batches of a data set as have the examples of so many of another size."""
    examples, reading = len(source.owner), source.reading
    more = 0 if reading.drop_remainder else batch_size - 1
    epochs, step = divmod(steps, max((examples + more) // batch_size, 1))
    done, again = divmod(step * batch_size, reading.batch_size)
    if again:
        logging.warning(
            "tfdear: training was interrupted after %d batches of %d examples of an epoch. It goes "
            "on after %d of %d, so that it sees %d examples again.",
            *(step, batch_size, done, reading.batch_size, again),
        )
    return epochs * source.reader.steps + done


def _check_validation(given: Mapping[str, Any], sources: Sequence[CachedBatches]) -> None:
    """Refuses to count epochs of one data set for two iterators that are read in turns."""
    if given.get("steps_per_epoch") is None or not cached_pipelines.repeats(given["x"]):
        return
    validation = given.get("validation_data")
    if any(source in sources for source in cached_pipelines.sources_of(validation)):
        raise ValueError(
            "`validation_data` is made from the same `DataCache.batches(...)` as `x`, which is "
            "repeated in one iterator for all epochs (`steps_per_epoch`): which of the two would "
            "have which epoch of it depends on what is read ahead. Call `batches` again for "
            "`validation_data`."
        )


def _save(callback: keras.callbacks.BackupAndRestore, save: seams.Original) -> None:
    save()
    if os.path.exists(callback._weights_path):  # Else it is no local path.
        training_position.write(callback._weights_path, callback)


@SEAMS.wrap(_keras_private.FIT)
def _fit(original: seams.Original, model: Any, *args: Any, **kwargs: Any) -> object:
    bound = inspect.signature(original).bind(model, *args, **kwargs)
    given = bound.arguments
    sources = cached_pipelines.sources_of(given.get("x"))
    callbacks = given.get("callbacks")
    whole_list = callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else None
    others = tf.nest.flatten(callbacks or []) if whole_list is None else whole_list.callbacks
    caches = list({id(source.owner): source.owner for source in sources}.values())
    for callback in others:
        # Those of `tfdear.callbacks` that want to know, also that there are none any more.
        if (tell := getattr(callback, "set_data_caches", None)) is not None:
            tell(caches)
    if not sources:
        return original(model, *args, **kwargs)
    _check_validation(given, sources)
    epochs = _Epochs(given["x"], given.get("steps_per_epoch"), list(others))
    model._initial_epoch = None  # Of an earlier `fit` that was resumed, which Keras keeps.
    if whole_list is None:
        given["callbacks"] = [*others, epochs]
        return original(*bound.args, **bound.kwargs)
    # It belongs to the script, which may give it to another `fit`.
    epochs.set_model(model)
    whole_list.callbacks.append(epochs)
    try:
        return original(*bound.args, **bound.kwargs)
    finally:
        whole_list.callbacks.remove(epochs)


@SEAMS.wrap(_keras_private.ENUMERATE_STEPS)
def _enumerate_steps(original: seams.Original, iterator: Any) -> Iterator[tuple]:
    # Runs when the epoch's first step is asked for.
    adapter = iterator.data_adapter
    is_dataset = isinstance(adapter, _keras_private.TF_DATASET_ADAPTER.get())
    sources = cached_pipelines.sources_of(adapter._dataset) if is_dataset else []
    done = max((source.steps_done for source in sources), default=0)
    for source in sources:
        source.steps_done = 0
    for step in original(iterator):
        if step[0] + iterator.steps_per_execution > done:
            yield step
