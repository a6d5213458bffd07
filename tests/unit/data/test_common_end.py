# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""How many batches a rank is given, of what the ranks say that they have.

What several ranks do with lengths that nobody knows is in `multi_process/test_own_pipelines.py`.
"""

import pytest
import tensorflow as tf

from tfdear.data import common_end, iterators


def batches(count):
    return tf.data.Dataset.range(3 * count).batch(3, drop_remainder=True)


def rows(dataset):
    return [len(batch) for batch in dataset]


@pytest.mark.parametrize(
    ("lengths", "expected"), [([2, 2], [3, 3]), ([2, 4], [3, 3, 0, 0]), ([2, 0], [3, 3])]
)
def test_known_lengths_are_made_equal_beforehand(lengths, expected):
    dataset = common_end.end_together(batches(2), lambda own: lengths, 0)
    assert not hasattr(dataset, common_end.COMMON_END)
    assert rows(dataset) == expected
    assert int(dataset.cardinality()) == len(expected)


def test_no_batch_is_known_to_be_the_last():
    given = batches(2).filter(lambda numbers: True)
    dataset = common_end.end_together(given, lambda own: [own, 5], 0)
    assert not hasattr(given, common_end.COMMON_END)
    handed_out = iterators.hand_out(dataset)
    assert int(handed_out.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    assert handed_out.element_spec.shape.as_list() == [None]
    # What a script makes of it is made of this rank's own.
    assert rows(handed_out.map(lambda numbers: numbers)) == [3, 3]
    assert rows(common_end.end_together(batches(2), lambda own: [own, -2], 0)) == [3, 3]


def test_endless_ones_stay_so():
    endless = batches(2).repeat()
    assert common_end.end_together(endless, lambda own: [own, own], 0) is endless
    unknown = common_end.end_together(endless, lambda own: [own, -2], 0)
    assert hasattr(unknown, common_end.COMMON_END)
    with pytest.raises(ValueError, match=r"by rank \(-1: endless\): \[-1, 7\]"):
        common_end.end_together(endless, lambda own: [own, 7], 0)


def test_without_other_ranks_it_cannot_be_read():
    dataset = common_end.end_together(batches(1), lambda own: [own, -2], 0)
    iterator = iter(getattr(dataset, common_end.COMMON_END))
    with pytest.raises(tf.errors.OpError, match="process group|not started"):
        next(iterator)
