# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Drawn ids have the counts that they are drawn to."""

import numpy as np
import pytest

from tfdear.benchmarks.ranks import drawn_ids


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(
    ("ids", "coalesced", "prior"), [(50, 30, 12), (30, 30, 30), (7, 5, 0), (1, 1, 1)]
)
def test_every_batch_has_the_counts(ids, coalesced, prior, ranks):
    batches = drawn_ids.draw(ids, coalesced, prior, ranks, seed=3)
    assert batches.shape == (drawn_ids.BATCHES, ranks, ids)
    assert batches.min() >= 0 and batches.max() < drawn_ids.rows_of(coalesced, prior, ranks)
    for number, batch in enumerate(batches):
        following = batches[(number + 1) % len(batches)]
        for own in batch:
            different = np.unique(own)
            assert len(different) == coalesced
            assert np.isin(different, following).sum() == prior


def test_spread_ids_are_different_and_others_on_every_rank():
    batches = drawn_ids.spread(100, 20, ranks=3)
    assert batches.shape == (drawn_ids.BATCHES, 3, 20)
    assert all(len(np.unique(own)) == 20 for batch in batches for own in batch)
    assert not np.array_equal(np.sort(batches[0, 0]), np.sort(batches[0, 1]))
    assert batches.max() < 100
