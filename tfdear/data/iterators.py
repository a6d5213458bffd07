# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Iterators over the strategy's datasets that are destroyed without waiting for them.

[Note: Destruction of iterators]
Dropping the last reference to an iterator runs its destructor, which joins the thread on which
tf.data tunes the pipeline. This thread may miss the request to end and sleep on, for up to a minute
(docs/data.md says why); `fit` would wait for it at the end of every epoch. So an iterator passes
the reference to its resource to a thread of its own: a destructor that hangs delays nothing except
its own pipeline.
"""

import _thread
import atexit
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TypeAlias

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import autotuning, first_batch

# Seconds for which the end of the script waits for running destructors. One that takes longer
# sleeps, and ends with the process.
_EXIT_SECONDS = 0.25


def hand_out(dataset: object, iterate: "_Iterate | None" = None) -> object:
    """The dataset that a script gets in place of this rank's own; passes on what is no dataset.

    `iterate` makes its iterators; None: as `DistributedIterator` does.
    """
    if not isinstance(dataset, tf.data.Dataset) or isinstance(dataset, DistributedDataset):
        return dataset
    comparison = getattr(dataset, first_batch.COMPARISON, None)
    return DistributedDataset(autotuning.switch_off_unused(dataset), comparison, iterate)


class DistributedDataset(tf.data.Dataset):
    """A dataset that the strategy hands out, with the elements of the one that it wraps.

    `comparison` compares the first batch of every iteration outside of a `tf.function`.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        comparison: first_batch.FirstBatch | None = None,
        iterate: "_Iterate | None" = None,
    ):
        self._input_dataset = dataset
        self._comparison = comparison
        self._iterate = DistributedIterator if iterate is None else iterate
        super().__init__(dataset._variant_tensor)

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._input_dataset]

    @property
    def element_spec(self) -> object:
        return self._input_dataset.element_spec

    def __iter__(self) -> Iterator[object]:
        if not tf.executing_eagerly():
            return super().__iter__()
        with tf.device(self._variant_tensor.device):
            if self._comparison is None:
                return self._iterate(self, None)
            return self._iterate(self._comparison.dataset, self._comparison)


class DistributedIterator(_tf_private.iterator_ops.OwnedIterator):
    """An iterator whose resource another thread destroys.

    When it is first used, it tells `comparison` whether there is a first batch, which `dataset`
    yields twice.
    """

    def __init__(self, dataset: tf.data.Dataset, comparison: first_batch.FirstBatch | None = None):
        self._comparison = None
        super().__init__(dataset)
        self._comparison = comparison
        _live.add(self)

    # Every use of the iterator, also by a `tf.function`, asks for its resource.
    @property
    def _iterator_resource(self) -> tf.Tensor:
        comparison, self._comparison = self._comparison, None
        if comparison is not None:
            with tf.init_scope():
                nothing = object()
                comparison.compare(next(self, nothing) is not nothing)
        return self.__dict__["_iterator_resource"]

    @_iterator_resource.setter
    def _iterator_resource(self, resource: tf.Tensor) -> None:
        self.__dict__["_iterator_resource"] = resource

    def __del__(self) -> None:
        resource = self.__dict__.pop("_iterator_resource", None)
        if resource is not None:
            reference = [resource]
            del resource
            _release(reference)


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


def _release(reference: list[tf.Tensor]) -> None:
    """Drops the only reference in a list on another thread. Takes no lock: finalizers call it."""
    _pending[id(reference)] = reference
    try:
        # Not `threading.Thread`, which takes locks and would be waited for at exit.
        _thread.start_new_thread(_drop, (reference,))
    except RuntimeError:  # No thread can be started: destroy it here.
        _drop(reference)


def _drop(reference: list[tf.Tensor]) -> None:
    # The list holds the last reference.
    reference.clear()
    _pending.pop(id(reference), None)


@atexit.register
def _release_all() -> None:
    """Ends all pipelines while the interpreter can still run their Python functions."""
    for iterator in list(_live):
        iterator.__del__()
    end = time.monotonic() + _EXIT_SECONDS
    while _pending and time.monotonic() < end:
        time.sleep(0.005)
