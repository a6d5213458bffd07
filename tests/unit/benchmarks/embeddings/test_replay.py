# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import pytest

from tfdear.benchmarks.embeddings import replay
from tfdear.benchmarks.embeddings.methods import Computation
from tfdear.planning.table import Table


def test_what_layers_wait_for_travels_outside_of_their_passes():
    layers = [Computation(1, 2, (6,)), Computation(3, 4), Computation(0.5, 0.25, (12,))]
    table = Table("words", 10, 64, ids=8, coalesced=6, prior=3, workers=2)
    exposed = replay._exposed_bytes("+early", table, ranks=2)
    assert exposed == 2 * 3 * 32 * 4  # Vectors and gradients: 3 rows, half the columns, 4 bytes.
    windows = list(replay._windows("+early", layers, {"words": 1}, [table], ranks=2))
    dense = [4 * 6, 4 * 6, 4 * (6 + 12)]
    assert windows == [(10.75, dense[0]), (7.75, dense[1] + exposed), (0.75, dense[2] + exposed)]


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (((10, 20), (1, 80)), 10 + 2),  # All of the computation;
        (((1, 20), (0.5, 80)), 9),  # the line;
        (((6, 20), (4, 80)), 4 + 8),  # what must wait for the last layer.
    ],
)
def test_the_least_of_a_step(windows, expected):
    shortest = replay._Shortest(windows, bytes=90, exposed_bytes=30)
    assert shortest.seconds(rate=10) == expected
    assert shortest.bound(rate=10) == max(windows[0][0] + 3, 9)


@pytest.mark.parametrize(("counts", "ids"), [(None, 8), ((12, 4, 2), 6)])
def test_tables_are_replayed_without_bags(counts, ids):
    table = Table("words", 10, 4, ids=8, coalesced=6, prior=3, workers=2, bags=2, tokens=7)
    counted = replay._counted(table, ranks=3, tables=2, counts=counts)
    assert (counted.ids, counted.workers, counted.bags, counted.tokens) == (ids, 3, 0, None)
