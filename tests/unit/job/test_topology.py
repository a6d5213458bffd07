# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Which ranks form the levels of collectives that work in two."""

import pytest

from tfdear.base import names
from tfdear.engine import plan as engine_plan
from tfdear.job import topology


@pytest.mark.parametrize(
    ("collective", "nodes", "rows", "of_nodes"),
    [
        ("hierarchical", [0, 0, 1, 1], [(0, 1), (2, 3)], True),
        ("hierarchical", [0, 1, 1, 0], [(0, 3), (1, 2)], True),
        ("hierarchical", [1, 1, 0, 0], [(2, 3), (0, 1)], True),
        ("hierarchical", [0, 0, 0], [(0, 1, 2)], True),
        ("hierarchical", [0, 1, 2], [(0,), (1,), (2,)], True),
        ("torus2d", [0, 0, 1, 1], [(0, 1), (2, 3)], True),
        ("torus2d", [0, 0, 0, 1, 1, 1], [(0, 1, 2), (3, 4, 5)], True),
        ("torus2d", [0, 1, 2, 3], [(0, 1), (2, 3)], False),
        ("torus2d", [0] * 6, [(0, 1, 2), (3, 4, 5)], False),
        ("torus2d", [0, 1, 2], [(0, 1, 2)], False),
        ("torus2d", [0, 1], [(0, 1)], False),
    ],
)
def test_grids(collective, nodes, rows, of_nodes):
    grid = topology.make_grid(collective, nodes)
    assert (list(grid.rows), grid.nodes) == (rows, of_nodes)
    assert grid.levels == engine_plan.Levels(intra=len(rows[0]), inter=len(rows))
    for rank in range(len(nodes)):
        row, column = grid.row_of(rank), grid.column_of(rank)
        # Together they reach everybody, and share the rank itself.
        assert set(row) & set(column) == {rank}
        assert {r for member in row for r in grid.column_of(member)} == set(range(len(nodes)))
        assert grid.rows[column.index(rank)][row.index(rank)] == rank


def test_a_torus_is_as_square_as_it_can_be():
    for world_size in range(2, 40):
        levels = topology.make_grid("torus2d", list(range(world_size))).levels
        assert levels.intra * levels.inter == world_size and levels.intra >= levels.inter
        better = range(levels.inter + 1, levels.intra)
        assert not any(world_size % n == 0 and n * n <= world_size for n in better)


@pytest.mark.parametrize("collective", names.COLLECTIVES_IN_LEVELS)
def test_nodes_of_different_sizes_are_refused(collective):
    with pytest.raises(ValueError, match="node 0 has 2, node 1 has 1, node 2 has 2"):
        topology.make_grid(collective, [0, 0, 1, 2, 2])
