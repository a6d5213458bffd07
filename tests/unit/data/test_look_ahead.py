# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Iterators that read one batch ahead give out what others do, and know the next batch."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfdear.data import autotuning, first_batch, global_batches, iterators, look_ahead


@pytest.fixture
def ahead():
    return look_ahead.LookAhead(lambda: True)


def _hand_out(dataset, ahead):
    return iterators.hand_out(dataset, ahead.iterate)


def _numbers(count=10, batch=4):
    return tf.data.Dataset.range(count).batch(batch)


def _ragged():
    words = tf.ragged.constant([[1, 2], [3], [], [4, 5, 6], [7]])
    return tf.data.Dataset.from_tensor_slices(words).batch(2)


def _sparse():
    return _ragged().map(lambda words: tf.sparse.from_dense(words.to_tensor()))


def _nested():
    twice = tf.ragged.constant([[[1], [2, 3]], [], [[4]]], ragged_rank=2)
    names = tf.constant(["one", "two", "three"])
    given = {"words": twice, "names": names, "two": (names, tf.zeros([3, 2, 2]))}
    return tf.data.Dataset.from_tensor_slices(given).batch(2)


def _unknown():
    def batches():
        yield np.arange(3)
        yield np.zeros([0])
        yield np.arange(2)

    specification = tf.TensorSpec([None], tf.float32)
    return tf.data.Dataset.from_generator(batches, output_signature=specification)


_DATASETS = {
    "numbers": _numbers,
    "fixed": lambda: tf.data.Dataset.range(8).batch(4, drop_remainder=True),
    "one": lambda: _numbers(3),
    "none": lambda: _numbers(0),
    "scalars": lambda: tf.data.Dataset.range(3),
    "ragged": _ragged,
    "sparse": _sparse,
    "nested": _nested,
    "unknown": _unknown,
}


def _plain(parts):
    return [np.asarray(part).tolist() for part in tf.nest.flatten(parts, expand_composites=True)]


@pytest.mark.parametrize("name", _DATASETS)
def test_the_elements_and_the_next_ones(ahead, name):
    dataset = _DATASETS[name]()
    expected = [_plain(batch) for batch in dataset]
    handed_out = _hand_out(dataset, ahead)
    iterator = iter(handed_out)
    assert isinstance(iterator, look_ahead.LookAheadIterator)
    assert iterator.element_spec == dataset.element_spec == handed_out.element_spec
    assert handed_out.cardinality() == dataset.cardinality()
    seen, following = [], []
    for batch in iterator:
        tf.nest.assert_same_structure(batch, dataset.element_spec, expand_composites=True)
        seen.append(_plain(batch))
        following.append(_plain(ahead.last.following) if ahead.last.has_next else None)
    assert seen == expected
    assert following == [*expected[1:], None][: len(expected)]
    assert ahead.last is None


def test_it_is_read_once(ahead):
    read = []

    def note(number):
        read.append(int(number))
        return number

    dataset = tf.data.Dataset.range(5).map(
        lambda number: tf.ensure_shape(tf.numpy_function(note, [number], tf.int64), [])
    )
    assert len(list(_hand_out(dataset, ahead))) == 5
    assert read == list(range(5))


def test_loops_in_graphs(ahead):
    dataset = _hand_out(_numbers(), ahead)
    reads = []

    @tf.function
    def over_iterator(iterator):
        total = tf.constant(0, tf.int64)
        for batch in iterator:
            reads.append(look_ahead.reads_of(batch.graph)[-1])
            total = total * 10 + tf.reduce_sum(batch)
        return total

    @tf.function
    def some(iterator):
        total = tf.reduce_sum(next(iterator))
        for _ in tf.range(2):
            total = total * 10 + tf.reduce_sum(iterator.get_next())
        return total

    @tf.function
    def over_dataset(dataset):
        total = tf.constant(0, tf.int64)
        for batch in dataset:
            total = total * 10 + tf.reduce_sum(batch)
        return total

    expected = (6 * 10 + 22) * 10 + 17
    assert over_iterator(iter(dataset)) == expected
    assert len(reads) == 1
    assert reads[0].kind == ((tf.int64, 1),)
    assert some(iter(dataset)) == expected
    assert over_dataset(dataset) == expected


def test_optional_elements(ahead):
    iterator = iter(_hand_out(_numbers(6), ahead))

    @tf.function
    def branches(iterator, wanted):
        first = iterator.get_next_as_optional()
        chosen = tf.cond(wanted, iterator.get_next_as_optional, lambda: first)
        return chosen.get_value(), iterator.get_next_as_optional().has_value()

    value, more = branches(iterator, tf.constant(True))
    assert value.numpy().tolist() == [4, 5]
    assert not more
    optional = iter(_hand_out(_numbers(), ahead)).get_next_as_optional()
    assert optional.element_spec == _numbers().element_spec
    assert optional.get_value().numpy().tolist() == [0, 1, 2, 3]


def test_the_position_is_kept_in_checkpoints(ahead, tmp_path):
    dataset = _hand_out(_numbers(20), ahead)
    iterator = iter(dataset)
    next(iterator)
    checkpoint = tf.train.Checkpoint(iterator=iterator)
    path = checkpoint.write(str(tmp_path / "position"))
    rest = [batch.numpy().tolist() for batch in iterator]
    other = iter(dataset)
    tf.train.Checkpoint(iterator=other).read(path).assert_consumed()
    assert [batch.numpy().tolist() for batch in other] == rest
    assert len(rest) == 4


def test_only_where_it_is_needed():
    needed = []
    ahead = look_ahead.LookAhead(lambda: bool(needed))
    dataset = _hand_out(_numbers(), ahead)
    assert type(iter(dataset)) is iterators.DistributedIterator
    assert not ahead.kinds
    needed.append(True)
    assert type(iter(dataset)) is look_ahead.LookAheadIterator
    derived = dataset.take(1)
    assert not isinstance(iter(derived), iterators.DistributedIterator)


def test_not_for_what_is_no_tensor(ahead):
    windows = _hand_out(tf.data.Dataset.range(6).window(2), ahead)
    assert type(iter(windows)) is iterators.DistributedIterator
    assert [list(window.as_numpy_iterator()) for window in windows] == [[0, 1], [2, 3], [4, 5]]


def _gather_own(integers):
    return [list(integers), list(integers)]


def test_a_source_that_remembers_its_position_is_read_in_step(ahead):
    source = iter(range(100))
    batches = tf.data.Dataset.from_generator(
        lambda: ([n, n + 50] for n in source), output_signature=tf.TensorSpec([2], tf.int32)
    )
    in_step = global_batches.read_in_step(batches)
    dataset = _hand_out(global_batches.distribute(in_step, 0, 2, _gather_own), ahead)
    assert type(iter(dataset)) is iterators.DistributedIterator


def test_the_first_batch_is_compared(ahead):
    compared = []

    def gather(integers):
        compared.append(integers)
        return _gather_own(integers)

    distributed = global_batches.distribute(_numbers(20), 1, 2, gather)
    assert hasattr(distributed, first_batch.COMPARISON)
    iterator = iter(_hand_out(distributed, ahead))
    assert isinstance(iterator, look_ahead.LookAheadIterator)
    batches = [batch.numpy().tolist() for batch in iterator]
    assert batches == [[first + 2, first + 3] for first in range(0, 20, 4)]
    assert len(compared) == 1


def test_options_are_kept(ahead):
    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = 3
    iterator = iter(_hand_out(_numbers().with_options(options), ahead))
    kept = iterator._dataset.options()
    assert kept.deterministic is False
    assert kept.threading.private_threadpool_size == 3
    assert kept.autotune.enabled is False  # Nothing is AUTOTUNE.
    assert not autotuning._is_tuned(iterator._dataset)


def test_a_tf_function_is_traced_once(ahead):
    traces = itertools.count()
    dataset = _hand_out(_numbers(), ahead)

    @tf.function
    def step(iterator):
        next(traces)
        return next(iterator)

    for _ in range(3):
        iterator = iter(dataset)
        assert len([step(iterator) for _ in range(3)]) == 3
    assert next(traces) == 1
