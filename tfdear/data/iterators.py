# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Iterators over the strategy's datasets that are destroyed without waiting for them.

[Note: Destruction of iterators]
Dropping the last reference to an iterator runs its destructor, which joins the thread on which
tf.data tunes the pipeline. This thread may miss the request to end and sleep on, for up to a minute
(docs/data.md says why); `fit` would wait for it at the end of every epoch. So an iterator passes
the reference to its resource to a thread of its own: a destructor that hangs delays nothing except
its own pipeline.

`Dataset.cache(filename)` locks its file until its iterator is destroyed. So where a pipeline has
one, the next iterator waits for those before it.
"""

import _thread
import atexit
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import (
    autotuning,
    cached_pipelines,
    common_end,
    first_batch,
    reading_order,
    shared_epochs,
)

# Seconds for which the end of the script waits for running destructors. One that takes longer
# sleeps, and ends with the process.
_EXIT_SECONDS = 0.25
# For which an iterator waits until those before it have let go of their files.
_FILES_SECONDS = 120.0


def hand_out(
    dataset: object,
    iterate: "_Iterate | None" = None,
    compare_every: int | None = None,
    epochs: shared_epochs.SharedEpochs | None = None,
) -> object:
    """The dataset that a script gets in place of this rank's own; passes on what is no dataset.

    `iterate` makes its iterators; None: as `DistributedIterator` does. `compare_every`: the number
    of batches of which the first is compared; None: the first of an iterator alone. `epochs`: where
    iterations of caches begin.
    """
    if not isinstance(dataset, tf.data.Dataset) or isinstance(dataset, DistributedDataset):
        return dataset
    comparison = getattr(dataset, first_batch.COMPARISON, None)
    together = getattr(dataset, common_end.COMMON_END, None)
    if together is not None:
        together = autotuning.switch_off_unused(together)
    dataset = autotuning.switch_off_unused(dataset)
    return DistributedDataset(dataset, comparison, together, iterate, compare_every, epochs)


def compare_every(dataset: object, batches: int) -> object:
    """The dataset, of which each of so many batches is the first of an epoch, and compared.

    Passes on what has no batches to compare, and what compares all of them.
    """
    if not isinstance(dataset, DistributedDataset) or dataset.every == 1:
        return dataset
    if dataset.comparison is None:
        return dataset
    (given,) = dataset._inputs()
    return DistributedDataset(given, dataset.comparison, None, dataset.iterate, batches)


class DistributedDataset(tf.data.Dataset):
    """A dataset that the strategy hands out, with the elements of the one that it wraps.

    `comparison` compares the first batch of every iteration outside of a `tf.function`, and of
    every `every` batches the first; see `first_batch.FirstBatch`. `together` is what iterations
    read instead, so that they end on all ranks at once; what a script makes of this data set is
    made of the one that it wraps, and ends together when it is distributed.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        comparison: first_batch.FirstBatch | None = None,
        together: tf.data.Dataset | None = None,
        iterate: "_Iterate | None" = None,
        every: int | None = None,
        epochs: shared_epochs.SharedEpochs | None = None,
    ):
        self._epochs = epochs
        self._input_dataset = dataset
        self.comparison = comparison
        self._together = together
        self.iterate: _Iterate = DistributedIterator if iterate is None else iterate
        self.every = every
        super().__init__(dataset._variant_tensor)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._input_dataset]

    @property
    def element_spec(self) -> object:
        return (self._together or self._input_dataset).element_spec

    def cardinality(self) -> tf.Tensor:
        if self._together is None:
            return super().cardinality()
        return tf.constant(tf.data.UNKNOWN_CARDINALITY, tf.int64)

    @property
    def iterated(self) -> tf.Tensor:
        """What iterations read, for the runtime, which begins them unseen."""
        if self._epochs is not None:
            self._epochs.go_on_unseen()
        return (self._together or self._input_dataset)._variant_tensor

    # Loops inside of a `tf.function` ask for it there, or hand the data set over.
    @property
    def _variant_tensor(self) -> tf.Tensor:
        return super()._variant_tensor if tf.executing_eagerly() else self.iterated

    @property
    def _type_spec(self) -> tf.data.DatasetSpec:
        return DistributedDatasetSpec(self.element_spec)

    def __iter__(self) -> Iterator[object]:
        if not tf.executing_eagerly():
            return super().__iter__()
        sources = [self._input_dataset]
        if self.comparison is not None:
            sources.append(self.comparison.source)
        locks_files = any(map(_locks_files, sources))
        if locks_files:
            _await_files()
        with tf.device(self._variant_tensor.device):
            if self.comparison is None:
                iterator = self.iterate(self._together or self, None)
            else:
                iterator = self.iterate(self.comparison.dataset(self.every), self.comparison)
            iterator.locks_files = locks_files
            iterator.epochs = self._epochs
            iterator.in_order = self._together is not None or self.every is not None
            return iterator


class DistributedDatasetSpec(tf.data.DatasetSpec):
    """What a `tf.function` knows of a `DistributedDataset`."""

    __slots__ = ()

    def _to_components(self, value: DistributedDataset) -> tf.Tensor:
        return value.iterated


class DistributedIterator(_tf_private.iterator_ops.OwnedIterator):
    """An iterator whose resource another thread destroys.

    When it is first used, it tells `comparison` whether there is a first batch, which `dataset`
    yields twice.
    """

    in_order = False  # Whether functions read it in the order of the program.
    # Where caches begin; it is told if the iterator is restored.
    epochs: shared_epochs.SharedEpochs | None = None
    locks_files = False  # Until it is destroyed.
    _begun = False

    def __init__(self, dataset: tf.data.Dataset, comparison: first_batch.FirstBatch | None = None):
        self._comparison = None
        super().__init__(dataset)
        self._comparison = comparison
        _live.add(self)

    @property
    def _type_spec(self) -> tf.data.IteratorSpec:
        if self.in_order:
            return reading_order.InOrderSpec(self.element_spec)
        return super()._type_spec

    # Every use of the iterator, also by a `tf.function`, asks for its resource.
    @property
    def _iterator_resource(self) -> tf.Tensor:
        if self.epochs is not None and not self._begun:
            self._begun = True
            self.epochs.begin()
        comparison, self._comparison = self._comparison, None
        if comparison is not None:
            with tf.init_scope():
                nothing = object()
                comparison.compare(next(self, nothing) is not nothing)
        return self.__dict__["_iterator_resource"]

    @_iterator_resource.setter
    def _iterator_resource(self, resource: tf.Tensor) -> None:
        self.__dict__["_iterator_resource"] = resource

    def _restore_from_tensors(self, restored_tensors: Mapping[str, tf.Tensor]) -> object:
        restored = super()._restore_from_tensors(restored_tensors)
        if self.epochs is not None:
            self.epochs.go_on_unseen()
        return restored

    def __del__(self) -> None:
        resource = self.__dict__.pop("_iterator_resource", None)
        if resource is not None:
            reference = [resource]
            del resource
            _release(reference, self.locks_files)


def compare_first_batch(iterator: Iterator[object]) -> None:
    """Compares an iterator's first batch now, not after a function of it is traced."""
    if isinstance(iterator, DistributedIterator):
        _ = iterator._iterator_resource


# Makes an iterator over a dataset whose first batch is compared.
_Iterate: TypeAlias = Callable[
    [tf.data.Dataset, first_batch.FirstBatch | None], DistributedIterator
]

# Iterators that may still be used.
_live: weakref.WeakSet = weakref.WeakSet()
# References whose threads have not returned yet, by their id.
_pending: dict[int, list[tf.Tensor]] = {}
# Those of them that hold locks of files.
_locking: set[int] = set()


def _locks_files(dataset: object) -> bool:
    """Whether a pipeline has a `cache(filename)`."""
    if not isinstance(dataset, tf.data.Dataset):
        return False
    is_cache = isinstance(dataset, _tf_private.cache_op.CacheDataset)
    if is_cache and tf.get_static_value(dataset._filename) != b"":
        return True
    return any(map(_locks_files, cached_pipelines.made_from(dataset)))


def _await_files() -> None:
    end = time.monotonic() + _FILES_SECONDS
    while _locking and time.monotonic() < end:
        time.sleep(0.005)


def _release(reference: list[tf.Tensor], locks_files: bool) -> None:
    """Drops the only reference in a list on another thread. Takes no lock: finalizers call it."""
    _pending[id(reference)] = reference
    if locks_files:
        _locking.add(id(reference))
    try:
        # Not `threading.Thread`, which takes locks and would be waited for at exit.
        _thread.start_new_thread(_drop, (reference,))
    except RuntimeError:  # No thread can be started: destroy it here.
        _drop(reference)


def _drop(reference: list[tf.Tensor]) -> None:
    # The list holds the last reference.
    reference.clear()
    _locking.discard(id(reference))
    _pending.pop(id(reference), None)


@atexit.register
def _release_all() -> None:
    """Ends all pipelines while the interpreter can still run their Python functions."""
    for iterator in list(_live):
        iterator.__del__()
    end = time.monotonic() + _EXIT_SECONDS
    while _pending and time.monotonic() < end:
        time.sleep(0.005)
