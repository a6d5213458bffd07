# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import pytest

from tfdear.benchmarks.embeddings import replay
from tfdear.benchmarks.embeddings.methods import Computation
from tfdear.planning.table import Table


def test_nothing_dense_travels_during_the_last_layer_that_has_gradients():
    layers = [Computation(1, 2, (5,)), Computation(3, 4, (5,)), Computation(0.5, 0.25)]
    assert replay._behind_dense(layers) == 3 + 4 + 0.5 + 0.25
    assert replay._behind_dense([Computation(1, 2)]) == 0


@pytest.mark.parametrize(
    ("computation", "behind_dense", "expected"),
    [(10, 1, 10 + 2), (1, 1, 9), (1, 4, 4 + 6 + 2)],  # Computation; the line; what must wait.
)
def test_the_least_of_a_step(computation, behind_dense, expected):
    shortest = replay._Shortest(computation, behind_dense, 90, dense_bytes=60, exposed_bytes=20)
    assert shortest.seconds(rate=10) == expected
    assert shortest.bound(rate=10) == max(computation + 2, 9)


@pytest.mark.parametrize(("counts", "ids"), [(None, 8), ((12, 4, 2), 6)])
def test_tables_are_replayed_without_bags(counts, ids):
    table = Table("words", 10, 4, ids=8, coalesced=6, prior=3, workers=2, bags=2, tokens=7)
    counted = replay._counted(table, ranks=3, tables=2, counts=counts)
    assert (counted.ids, counted.workers, counted.bags, counted.tokens) == (ids, 3, 0, None)
