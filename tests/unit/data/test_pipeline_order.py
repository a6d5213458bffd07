# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Pipelines whose order may differ between ranks are put into one order, or refused."""

import random
import time
import warnings

import pytest
import tensorflow as tf

from tfdear.data import global_batches as data
from tfdear.data import pipeline_order

COUNT = 120


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("records")
    for place in range(6):
        with tf.io.TFRecordWriter(str(directory / f"{place}.tfrecord")) as writer:
            for row in range(COUNT // 6):
                writer.write(str(place * COUNT // 6 + row).encode())
    return str(directory / "*.tfrecord")


def late(row):
    """Takes a while, another one each time."""

    def wait(value):
        time.sleep(random.random() * 0.004)
        return value

    result = tf.numpy_function(wait, [row], tf.string)
    result.set_shape([])
    return result


def listed(pattern):
    return tf.data.Dataset.list_files(pattern, shuffle=False)


def with_option(dataset):
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


def records(file):
    return tf.data.TFRecordDataset(file).map(late)


UNORDERED = {
    "map": lambda files: (
        listed(files)
        .flat_map(tf.data.TFRecordDataset)
        .map(late, num_parallel_calls=4, deterministic=False)
    ),
    "interleave": lambda files: listed(files).interleave(
        records, cycle_length=4, num_parallel_calls=4, deterministic=False
    ),
    "sloppy": lambda files: listed(files).apply(
        tf.data.experimental.parallel_interleave(records, cycle_length=4, sloppy=True)
    ),
    "batch": lambda files: (
        listed(files)
        .flat_map(records)
        .batch(5, num_parallel_calls=4, deterministic=False)
        .unbatch()
    ),
    "nested": lambda files: listed(files).flat_map(
        lambda file: tf.data.TFRecordDataset(file).map(
            late, num_parallel_calls=4, deterministic=False
        )
    ),
    "option": lambda files: with_option(
        listed(files).flat_map(tf.data.TFRecordDataset).map(late, num_parallel_calls=4)
    ),
    "reads": lambda files: with_option(
        tf.data.TFRecordDataset(listed(files), num_parallel_reads=3).map(late, num_parallel_calls=4)
    ),
}


def rows(dataset):
    return [int(row) for row in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("name", UNORDERED)
def test_an_order_that_may_change_is_forced_into_one(name, files):
    with pytest.warns(UserWarning, match="put into one order"):
        orders = [
            rows(pipeline_order.make_deterministic(UNORDERED[name](files))[0]) for _ in range(2)
        ]
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(COUNT))


def test_a_lookup_table_and_tensors_of_several_kinds_survive(files):
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.range(COUNT, dtype=tf.int64), tf.range(COUNT)), -1
    )

    def parse(row):
        number = tf.strings.to_number(row, tf.int64)
        return {"ragged": tf.ragged.stack([[row]]), "looked_up": table.lookup(number)}, number

    unordered = listed(files).interleave(
        lambda file: tf.data.TFRecordDataset(file).map(parse),
        num_parallel_calls=4,
        deterministic=False,
    )
    with pytest.warns(UserWarning, match="put into one order"):
        ordered, _ = pipeline_order.make_deterministic(unordered.batch(7))
    assert ordered.element_spec == unordered.batch(7).element_spec
    numbers = []
    for features, number in ordered:
        assert features["looked_up"].numpy().tolist() == number.numpy().tolist()
        numbers.extend(number.numpy().tolist())
    assert sorted(numbers) == list(range(COUNT))


def unseeded(files):
    drawn = tf.data.Dataset.random()
    few = tf.data.Dataset.range(9)
    return {
        "shuffle": few.shuffle(4),
        "shuffle of the files": tf.data.Dataset.list_files(files),
        "random": drawn,
        "random choice": tf.data.Dataset.sample_from_datasets([few, few]),
        "shuffle in a function": few.interleave(lambda _: tf.data.Dataset.range(9).shuffle(4)),
        "random in a function": few.flat_map(lambda _: tf.data.Dataset.random().take(2)),
        "filter": few.filter(lambda _: tf.random.uniform([]) < 0.5),
        "parallel": few.interleave(
            lambda _: tf.data.Dataset.range(9).shuffle(4), num_parallel_calls=2
        ),
    }


@pytest.mark.parametrize("name", unseeded("*"))
def test_an_order_without_a_seed_is_refused(name, files):
    tf.random.set_seed(None)
    with pytest.raises(ValueError, match="without a seed"):
        data.distribute(unseeded(files)[name].batch(2), 0, 2, lambda values: [values, values])


@pytest.mark.parametrize("name", unseeded("*"))
def test_an_order_with_the_seed_that_ranks_share_is_kept(name, files):
    tf.random.set_seed(3)
    try:
        dataset = unseeded(files)[name]
    finally:
        tf.random.set_seed(None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pipeline_order.make_deterministic(dataset)[0] is dataset


def test_what_draws_numbers_element_by_element_is_known():
    few = tf.data.Dataset.range(9)

    def noise(_):
        return tf.random.normal([2], seed=1)

    assert not pipeline_order.inspect(few.map(noise)).draws
    assert pipeline_order.inspect(few.map(noise, num_parallel_calls=2)).draws
    assert pipeline_order.inspect(few.map(lambda _: tf.random.normal([2]))).draws
    python = few.map(lambda row: tf.numpy_function(lambda value: value, [row], tf.int64))
    assert pipeline_order.inspect(python).draws
    assert not pipeline_order.inspect(python).generated
    generated = tf.data.Dataset.from_generator(
        lambda: range(3), output_signature=tf.TensorSpec([], tf.int32)
    )
    assert pipeline_order.inspect(generated).generated
    assert not pipeline_order.inspect(generated).draws


def test_an_order_that_depends_on_the_number_of_cores_is_known():
    few = tf.data.Dataset.range(9)

    def repeated(row):
        return tf.data.Dataset.from_tensors(row).repeat(3)

    for parallel in (None, 2, tf.data.AUTOTUNE):
        by_cores = few.interleave(repeated, num_parallel_calls=parallel)
        assert pipeline_order.inspect(by_cores).counts_cores
        nested = few.flat_map(
            lambda _, calls=parallel: tf.data.Dataset.range(9).interleave(
                repeated, num_parallel_calls=calls
            )
        )
        assert pipeline_order.inspect(nested).counts_cores
        by_number = few.interleave(repeated, cycle_length=2, num_parallel_calls=parallel)
        assert not pipeline_order.inspect(by_number).counts_cores
