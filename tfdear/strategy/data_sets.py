# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The data sets that a strategy hands out."""

import itertools

import tensorflow as tf

from tfdear.data import (
    cache_agreement,
    common_end,
    examples,
    first_batch,
    global_batches,
    iterators,
    look_ahead,
    pipeline_order,
    sharding_policy,
    shared_epochs,
)
from tfdear.job import job as job_module
from tfdear.job import options


class DataSets:
    """Makes a rank's data sets of those of scripts; all ranks call it for theirs in one order.

    Args:
        job: The ranks.
        gather: Gathers lists of integers from all of them.
        gather_later: The same, from within a pipeline, in a process group of its own.
        elements: Gets to know what the data sets yield.
        look_ahead: Makes their iterators.
    """

    def __init__(
        self,
        job: job_module.Job,
        gather: first_batch.Gather,
        gather_later: first_batch.Gather,
        elements: examples.Elements,
        look_ahead: look_ahead.LookAhead,
    ):
        self._job = job
        self._gather = gather
        self._gather_later = gather_later
        self._elements = elements
        self._look_ahead = look_ahead
        self._numbers = itertools.count()

    def distribute(self, dataset: tf.data.Dataset) -> object:
        """Of a data set of global batches."""
        if isinstance(dataset, iterators.DistributedDataset):
            return dataset  # A rank's already.
        epochs = self._epochs_of(dataset)
        if epochs is not None and self._job.world_size > 1:
            # Else the ranks' rows in a step would be those of several batches.
            ordered, _ = pipeline_order.make_deterministic(dataset)
            dataset = global_batches.mark_distributed(ordered)
        if self._job.world_size == 1:
            dataset = sharding_policy.of_one_rank(dataset)
        else:
            dataset = global_batches.distribute(
                dataset,
                self._job.rank,
                self._job.world_size,
                self._gather,
                gather_later=self._gather_later,
                number=next(self._numbers),
            )
            comparison = getattr(dataset, first_batch.COMPARISON, None)
            self._elements.add(
                dataset.element_spec, None if comparison is None else comparison.seen
            )
        every = 1 if options.checks_data() else None
        return iterators.hand_out(dataset, self._look_ahead.iterate, every, epochs)

    def distribute_own(self, dataset: tf.data.Dataset) -> object:
        """Of a data set of this rank's own batches."""
        epochs = self._epochs_of(dataset)
        if self._job.world_size > 1:
            self._elements.add(dataset.element_spec)
            dataset = common_end.end_together(
                dataset, self._job.exchange_integers, next(self._numbers)
            )
            dataset = global_batches.mark_distributed(dataset)
        return iterators.hand_out(dataset, self._look_ahead.iterate, epochs=epochs)

    def _epochs_of(self, dataset: object) -> shared_epochs.SharedEpochs | None:
        """Where iterations of caches begin; None: the data set is not made from any."""
        gather = self._gather if self._job.world_size > 1 else None
        epochs = shared_epochs.of(dataset, self._job.rank, gather)
        for source, _ in [] if epochs is None else epochs.sources:
            cache_agreement.check_made_for(source.job)
        return epochs
