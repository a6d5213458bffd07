# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Files and hints: what a rank gets, and what is refused before anything is read."""

import pytest
import tensorflow as tf

from tfdear.data import sharding_policy

HINT = tf.data.experimental.SHARD_HINT
POLICY = tf.data.experimental.AutoShardPolicy


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    first, paths = 0, []
    for place, count in enumerate((0, 1, 5, 17, 3)):
        paths.append(str(directory / f"{place}.tfrecord"))
        with tf.io.TFRecordWriter(paths[-1]) as writer:
            for number in range(first, first + count):
                writer.write(str(number).encode())
        first += count
    return paths


def with_policy(dataset, policy):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def parts(dataset, ranks):
    """The elements that each of the ranks gets."""
    own = [
        sharding_policy.shard(dataset, rank, ranks, lambda own: [own] * ranks)
        for rank in range(ranks)
    ]
    return [[int(value) for batch in part for value in batch.numpy()] for part in own]


READERS = {
    "names": lambda names: tf.data.TFRecordDataset(names),
    "several at a time": lambda names: tf.data.TFRecordDataset(names, num_parallel_reads=2),
    "interleave": lambda names: tf.data.Dataset.from_tensor_slices(names).interleave(
        tf.data.TFRecordDataset, 2, num_parallel_calls=2, deterministic=False
    ),
    "listed in any order": lambda names: (
        tf.data.Dataset.list_files(names).flat_map(tf.data.TFRecordDataset).shuffle(10)
    ),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("ranks", (2, 3, 5))
def test_files_are_divided(names, reader, ranks):
    dataset = with_policy(READERS[reader](names).batch(4), POLICY.FILE)
    found = parts(dataset, ranks)
    assert sorted(sum(found, [])) == list(range(26))
    of_files = ([], [0], range(1, 6), range(6, 23), range(23, 26))
    for rank, own in enumerate(found):
        assert sorted(own) == sorted(sum(map(list, of_files[rank::ranks]), []))


@pytest.mark.parametrize("ranks", (2, 3, 4))
def test_a_hint_says_what_is_divided(names, ranks):
    dataset = tf.data.TFRecordDataset(names).shard(HINT, HINT).batch(4)
    found = parts(with_policy(dataset, POLICY.HINT), ranks)
    assert found == [list(range(rank, 26, ranks)) for rank in range(ranks)]


def test_what_stands_before_a_hint_is_put_into_one_order():
    numbers = tf.data.Dataset.range(26).map(lambda n: n, num_parallel_calls=4, deterministic=False)
    dataset = with_policy(numbers.shard(HINT, HINT).batch(4), POLICY.HINT)
    with pytest.warns(UserWarning, match="put into one order"):
        assert parts(dataset, 2) == [list(range(rank, 26, 2)) for rank in range(2)]


def test_a_rank_alone_has_everything(names):
    hinted = tf.data.TFRecordDataset(names).shard(HINT, HINT).batch(4)
    alone = sharding_policy.of_one_rank(with_policy(hinted, POLICY.HINT))
    assert [int(number) for batch in alone for number in batch.numpy()] == list(range(26))
    files = with_policy(tf.data.TFRecordDataset(names), POLICY.FILE)
    assert sharding_policy.of_one_rank(files) is files


def test_fewer_files_than_ranks_are_an_error_with_both_numbers(names):
    dataset = with_policy(tf.data.TFRecordDataset(names[:2]).batch(4), POLICY.FILE)
    with pytest.raises(ValueError, match="has 2 files, and there are 3 ranks"):
        parts(dataset, 3)
    hinted = tf.data.Dataset.from_tensor_slices(names[:2]).shard(HINT, HINT)
    hinted = hinted.flat_map(tf.data.TFRecordDataset).batch(4)
    with pytest.raises(ValueError, match="has 2 elements before its hint, and there are 3 ranks"):
        parts(with_policy(hinted, POLICY.HINT), 3)


def test_every_place_that_reads_files_needs_enough(names):
    joined = tf.data.TFRecordDataset(names[1:]).concatenate(tf.data.TFRecordDataset(names[2:4]))
    dataset = with_policy(joined.batch(4), POLICY.FILE)
    assert sorted(sum(parts(dataset, 2), [])) == sorted([*range(26), *range(1, 23)])
    with pytest.raises(ValueError, match="has 2 files at one of 2 places, and there are 3 ranks"):
        parts(dataset, 3)


def test_ranks_with_other_files_are_named(names):
    dataset = with_policy(tf.data.TFRecordDataset(names).batch(4), POLICY.FILE)
    with pytest.raises(ValueError, match=r"\[\[0, 2\], \[1\]\].*by rank: \[5, 5, 5\]"):
        sharding_policy.shard(dataset, 0, 3, lambda own: [own, [own[0], own[1] + 1], own])


def test_what_cannot_be_divided_is_refused(names):
    with pytest.raises(ValueError, match="finds no files in this data set"):
        parts(with_policy(tf.data.Dataset.range(8).batch(4), POLICY.FILE), 2)
    with pytest.raises(ValueError, match="SHARD_HINT"):
        parts(with_policy(tf.data.TFRecordDataset(names).batch(4), POLICY.HINT), 2)
    tf.random.set_seed(None)
    unseeded = tf.data.Dataset.range(26).shuffle(26).shard(HINT, HINT).batch(4)
    with pytest.raises(ValueError, match="without a seed"):
        parts(with_policy(unseeded, POLICY.HINT), 2)
