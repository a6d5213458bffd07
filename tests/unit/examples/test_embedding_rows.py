# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

import embedding_rows
import numpy as np
import pytest


def test_rows_of_two_ranks_counted_by_hand():
    # Ranks have a row each. In the first step they look up 1, 1, 2 and 3, 3, 3.
    steps = [
        [np.array([[1, 1, 2], [3, 3, 3]])],
        [np.array([[2, 3, 4], [5, 6, 7]])],
        [np.array([[7, 7, 7], [4, 4, 0]])],
    ]
    # Step 1: 2 and 1 different ones, of which 2 and 3 come again, whoever looks them up.
    # Step 2: 3 and 3, of which 4 and 7.
    original, coalesced, prior = embedding_rows.count(steps, ranks=2)
    assert (original, coalesced, prior) == pytest.approx((3, (1.5 + 3) / 2, (1 + 1) / 2))


def test_tables_are_counted_together():
    step = [np.array([[1], [2]]), np.array([[1, 1], [2, 2]])]
    assert embedding_rows.count([step, step], ranks=2) == pytest.approx([3, 2, 2])
