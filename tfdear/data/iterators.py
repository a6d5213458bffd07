# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Iterators over the strategy's data sets, which nobody has to wait for when they are let go.

[Note: Nobody waits for an iterator's end]
Whoever drops the last reference to an iterator runs its destructor, and that joins the thread on
which tf.data tunes the pipeline. This thread may miss that it was told to end and sleep on, up to a
minute (docs/data.md says why); `fit` would wait for it at the end of every epoch. So an iterator
that dies hands the reference to its resource to a thread of its own: one that is stuck holds up
nothing but its own pipeline.
"""

import _thread
import atexit
import time
import weakref
from collections.abc import Iterator

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import autotuning, first_batch

# Seconds that the end of the script leaves to destructors that are running. What takes longer
# sleeps, and ends with the process.
_EXIT_PATIENCE = 0.25


def hand_out(dataset: object) -> object:
    """Returns the data set that a script gets for one of its own.

    Args:
        dataset: This rank's `tf.data.Dataset`; anything else is passed through.
    """
    if not isinstance(dataset, tf.data.Dataset) or isinstance(dataset, DistributedDataset):
        return dataset
    comparison = getattr(dataset, first_batch.COMPARISON, None)
    return DistributedDataset(autotuning.switch_off_unused(dataset), comparison)


class DistributedDataset(tf.data.Dataset):
    """A data set that the strategy hands out. Its elements are those of the one it is made of.

    Args:
        dataset: This rank's `tf.data.Dataset`.
        comparison: Compares the first batch of every iteration outside of a `tf.function`.
    """

    def __init__(self, dataset: tf.data.Dataset, comparison: first_batch.FirstBatch | None = None):
        self._input_dataset = dataset
        self._comparison = comparison
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
                return DistributedIterator(self)
            return DistributedIterator(self._comparison.dataset, self._comparison)


class DistributedIterator(_tf_private.iterator_ops.OwnedIterator):
    """An iterator whose resource another thread destroys.

    Args:
        dataset: What it iterates over.
        comparison: Asked when the iterator is first used, with whether there is a first batch;
            `dataset` yields that one twice.
    """

    def __init__(self, dataset: tf.data.Dataset, comparison: first_batch.FirstBatch | None = None):
        self._comparison = None
        super().__init__(dataset)
        self._comparison = comparison
        _alive.add(self)

    # Whatever uses the iterator, a `tf.function` included, asks for its resource.
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
            _let_go(reference)


def look_at_first_batch(iterator: Iterator[object]) -> None:
    """Has an iterator's first batch looked at now, not after a function of it is traced."""
    if isinstance(iterator, DistributedIterator):
        _ = iterator._iterator_resource


# Iterators that may still be used.
_alive: weakref.WeakSet = weakref.WeakSet()
# References whose threads have not returned yet, by their id.
_leaving: dict[int, list[tf.Tensor]] = {}


def _let_go(reference: list[tf.Tensor]) -> None:
    """Drops the one reference in a list on another thread. Takes no lock: finalizers call it."""
    _leaving[id(reference)] = reference
    try:
        # Not `threading.Thread`, which takes locks and would be waited for at exit.
        _thread.start_new_thread(_drop, (reference,))
    except RuntimeError:  # No thread to be had: then here, as without this module.
        _drop(reference)


def _drop(reference: list[tf.Tensor]) -> None:
    # The list is the only one to hold it, so its last reference ends here.
    reference.clear()
    _leaving.pop(id(reference), None)


@atexit.register
def _let_all_go() -> None:
    """Ends all pipelines while there is an interpreter that their Python functions can run in."""
    for iterator in list(_alive):
        iterator.__del__()
    end = time.monotonic() + _EXIT_PATIENCE
    while _leaving and time.monotonic() < end:
        time.sleep(0.005)
