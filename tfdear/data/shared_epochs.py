# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Iterations of caches' data sets begin at the same place on all ranks.

[Note: Who counts epochs]
A reader of a cache counts epochs as they begin, in whatever iterator of its process: also one that
a script made on one rank alone, to look at a batch. Iterations of the data sets that a strategy
hands out are counted here instead: all ranks begin these alike, and compare where they do before
they read a batch. A loop inside of a `tf.function`, and an iterator that is restored, go on where
nobody here sees it: from then on the reader counts.
"""

import itertools

from tfdear.data import cached_pipelines
from tfdear.data.first_batch import Gather


class SharedEpochs:
    """Where iterations of one data set begin.

    Args:
        dataset: What a script has made of the data sets of caches.
        rank: This one.
        gather: Gathers lists of integers from all ranks; None: this one is alone.
    """

    def __init__(self, dataset: object, rank: int, gather: Gather | None):
        self.sources = cached_pipelines.epochs_of(dataset)
        self._parts = cached_pipelines.parts_of(dataset)
        self._rank = rank
        self._gather = gather

    def begin(self) -> None:
        """Lets an iteration begin; all ranks call it before the iterator is used first.

        Raises:
            ValueError: They do not begin at the same place of the same data sets, or each takes
                another part of its rows.
        """
        own = []
        for source, epochs in self.sources:
            own += [source.checksum, *source.begin(epochs)]
        if self._gather is None:
            return
        count = len(own)
        told = self._gather([*own, *itertools.chain.from_iterable(self._parts)])
        ranks = [rank[:count] for rank in told]
        if all(rank == told[0] for rank in told):
            return
        if all(rank == ranks[0] for rank in ranks):
            raise ValueError(
                f"Rank {self._rank}: the ranks take different parts of a DataCache's data set by "
                "`shard`, but each has its own rows there already, so that all others would be "
                "lost. Leave `shard` out. Received, by rank, numbers of parts and the one that is "
                f"taken: {[rank[count:] for rank in told]}"
            )
        places = [[tuple(rank[i : i + 2]) for i in range(1, len(rank), 3)] for rank in ranks]
        raise ValueError(
            f"Rank {self._rank}: the ranks do not begin the same epoch of the same data set of a "
            "DataCache, so that examples would be lost or repeated. All ranks must make and "
            "iterate over the same data sets in the same order. Where their places are the same, "
            f"the data sets differ. Epoch and step of each cache's data set, by rank: {places}"
        )

    def go_on_unseen(self) -> None:
        """Says that iterations may begin from here on that are not counted here."""
        for source, _ in self.sources:
            source.leave_counting()


def of(dataset: object, rank: int, gather: Gather | None) -> SharedEpochs | None:
    """Of a data set that is made from those of caches; None: it is not."""
    epochs = SharedEpochs(dataset, rank, gather)
    return epochs if epochs.sources else None
