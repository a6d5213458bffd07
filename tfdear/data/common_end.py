# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ranks with data of their own end an epoch in the same step, whatever each of them has.

A rank that has fewer batches than others goes on with empty ones, which weigh nothing. Where all
ranks know how many they have, the empty ones are part of the data set; where one does not, every
batch is followed by a sum that tells whether any rank has another (`common_end_dataset.cc`).
"""

from collections.abc import Callable

import tensorflow as tf

from tfdear._private import tensorflow as _tf_private
from tfdear.data import autotuning, blank_batch
from tfdear.engine import library

# Where a data set keeps what is iterated over in its place.
COMMON_END = "_tfdear_common_end"


class CommonEnd(tf.data.Dataset):
    """A rank's own batches, then empty ones, until no rank has any more.

    It must be the last step of a pipeline: the ranks exchange sums in the order in which batches
    are asked for, which is the same on all of them only where scripts ask.

    Args:
        own: What this rank has.
        number: The same on all ranks, and another for every data set.
    """

    def __init__(self, own: tf.data.Dataset, number: int):
        if not isinstance(own, _tf_private.PREFETCH_DATASET.get()):
            own = own.prefetch(autotuning.READ_AHEAD)
        there = tf.data.Dataset.zip((own, tf.data.Dataset.from_tensors(True).repeat()))
        after = tf.data.Dataset.from_tensors((blank_batch.of(own.element_spec), False)).repeat()
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        self._input_dataset = there.concatenate(after).with_options(options)
        self._spec = self._input_dataset.element_spec[0]
        super().__init__(
            library.load().dear_common_end_dataset(
                self._input_dataset._variant_tensor, number, **self._flat_structure
            )
        )

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._input_dataset]

    @property
    def element_spec(self) -> object:
        return self._spec


def end_together(
    dataset: tf.data.Dataset, exchange: Callable[[int], list[int]], number: int
) -> tf.data.Dataset:
    """Lets ranks whose own data sets have different lengths end an epoch together.

    `exchange` gathers an integer from every rank; `number`: of the data set, the same on all ranks.
    If a length is not known, the result has what is to be iterated over as its `COMMON_END`. Raises
    a ValueError if some ranks have endless data sets and others have finite ones.
    """
    own = int(dataset.cardinality().numpy())
    lengths = exchange(own)
    if tf.data.UNKNOWN_CARDINALITY in lengths:
        # A data set of the same elements, as the attribute must not stay at the script's.
        dataset = dataset.with_options(tf.data.Options())
        setattr(dataset, COMMON_END, CommonEnd(dataset, number))
        return dataset
    longest = max(lengths)
    if min(lengths) < 0 and longest >= 0:
        raise ValueError(
            "Some ranks have endless data sets of their own and others do not, so that an epoch "
            "would have no end. Make all of them endless with `repeat()` and pass "
            "`steps_per_epoch`, or none. Received lengths, by rank (-1: endless): "
            f"{lengths}"
        )
    if own == longest or longest < 0:
        return dataset
    blank = tf.data.Dataset.from_tensors(blank_batch.of(dataset.element_spec))
    return dataset.concatenate(blank.repeat(longest - own))
