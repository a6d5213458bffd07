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
    next(iter(comparison.dataset()))
    comparison.compare(found=True)
    assert [part.tolist() for part in comparison.seen.row] == [[0]] * len(sizes)
    found = [record.getMessage() for record in caplog.records]
    assert [f"{list(sizes)}, and {world_size} ranks" in message for message in found] == [True] * (
        warned
    )


def compared(every, batches, gather_later, size=4):
    """The rows of rank 0 of 2, of a data set of so many batches."""
    dataset = tf.data.Dataset.range(size * batches).batch(size)
    shared = data.distribute(dataset, 0, 2, lambda own: [own] * 2, gather_later=gather_later)
    comparison = getattr(shared, first_batch.COMPARISON)
    first, *rows = (batch.numpy().tolist() for batch in comparison.dataset(every))
    assert first == rows[0]  # It comes twice.
    return rows


@pytest.mark.parametrize(
    ("every", "expected"),
    [(None, []), (1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (3, [3, 6]), (7, [])],
)
def test_the_first_of_so_many_batches_are_compared(every, expected):
    seen = []

    def gather(own):
        seen.append(own)
        return [own] * 2

    rows = compared(every, 7, gather)
    assert rows == [[4 * place, 4 * place + 1] for place in range(7)]
    digests = [own[4:] for own in seen]
    assert len({tuple(digest) for digest in digests}) == len(digests)
    if every == 1:
        assert seen[-1][0] == 0 and digests[-1] == []  # The end.
        digests.pop()
    assert len(digests) == len(expected)


def test_a_later_batch_that_differs_is_an_error():
    calls = []

    def gather(own):
        calls.append(own)
        return [own, own if len(calls) < 5 else [*own[:4], own[4] + 1, own[5]]]

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Batch 5 .*: \[\[0\], \[1\]\]"):
        compared(1, 7, gather)


def test_a_rank_that_has_more_batches_is_an_error():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Batch 5 .* ranks \[1\], and not"):
        compared(1, 5, lambda own: [own, [1, *own[1:]]])
