# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What the first global batch says about the work that the ranks share."""

import pytest
import tensorflow as tf

from tfdear.data import first_batch
from tfdear.data import global_batches as data


@pytest.fixture(autouse=True)
def every_warning(monkeypatch):
    monkeypatch.setattr(
        first_batch.logging,
        "log_first_n",
        lambda level, text, n, *a: first_batch.logging.log(level, text, *a),
    )
    first_batch.logging.get_absl_logger().propagate = True


def rows(size):
    return tf.data.Dataset.range(2 * size).batch(size)


@pytest.mark.parametrize(
    "sizes, world_size, warned",
    [
        ((12, 6), 2, False),
        ((12, 6), 3, False),
        ((20, 5), 2, True),
        ((4, 1), 2, True),
        ((7, 7), 3, False),
        ((20, 5), 1, False),
    ],
)
def test_parts_that_ranks_share_differently_are_warned_about(caplog, sizes, world_size, warned):
    dataset = tf.data.Dataset.zip(tuple(rows(size) for size in sizes))
    shared = data.distribute(dataset, 0, world_size, lambda own: [own] * world_size)
    comparison = getattr(shared, first_batch.COMPARISON)
    next(iter(comparison.dataset))
    comparison.compare(found=True)
    assert [part.tolist() for part in comparison.row] == [[0]] * len(sizes)
    found = [record.getMessage() for record in caplog.records]
    assert [f"{list(sizes)}, and {world_size} ranks" in message for message in found] == [True] * (
        warned
    )
