# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Ids of batches with given counts of rows. Needs NumPy alone."""

import numpy as np

# After so many batches the first one comes again.
BATCHES = 4


def draw(ids: int, coalesced: int, prior: int, ranks: int, seed: int = 0) -> np.ndarray:
    """Ids of `BATCHES` batches for every rank: an array of [batches, ranks, ids].

    Of a rank's ids, `coalesced` are different, and `prior` of those occur in the next batch of some
    rank: the same ones for all ranks and batches. The others are in no other batch. Ids are from 0
    to `rows_of(coalesced, prior, ranks)`, in no order.
    """
    generator = np.random.default_rng(seed)
    rows = rows_of(coalesced, prior, ranks)
    own = np.arange(prior, rows).reshape(BATCHES, ranks, coalesced - prior)
    shared = np.broadcast_to(np.arange(prior), (BATCHES, ranks, prior))
    different = np.concatenate([shared, own], axis=2)
    places = generator.integers(coalesced, size=(BATCHES, ranks, ids - coalesced))
    repeated = np.take_along_axis(different, places, axis=2)
    batches = generator.permuted(np.concatenate([different, repeated], axis=2), axis=2)
    return generator.permutation(rows).astype(np.int32)[batches]


def rows_of(coalesced: int, prior: int, ranks: int) -> int:
    """How many rows the batches of `draw` have together."""
    return prior + BATCHES * ranks * (coalesced - prior)


def spread(rows: int, used: int, ranks: int, seed: int = 0) -> np.ndarray:
    """Ids of `BATCHES` batches in which every rank has `used` of the rows, all equally likely."""
    generator = np.random.default_rng(seed)
    batches = [[generator.permutation(rows)[:used] for _ in range(ranks)] for _ in range(BATCHES)]
    return np.array(batches, np.int32)
