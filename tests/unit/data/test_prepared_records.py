# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A disk that holds prepared examples."""

import numpy as np
import pytest
import tensorflow as tf

import tfdear

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "numbers.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(150):
            writer.write(str(number).encode())
    return path


def run(records, directory, prepare, **arguments):
    """The batches of an epoch, and the statistics after it."""
    source = tfdear.data.TFRecordFiles(records)
    cache = tfdear.data.DataCache(
        source, prepare, directory=directory, disk_holds="prepared", **arguments
    )
    batches = list(cache.batches(16, shuffle=False).as_numpy_iterator())
    statistics = cache.statistics()
    cache.close()
    return batches, statistics


def prepare_with(factor):
    table = tf.constant(np.arange(5) * factor)

    def prepare(record):
        number = tf.strings.to_number(record, tf.int64)
        # A function in the graph.
        sign = tf.cond(number > 50, lambda: tf.constant(1.0), lambda: tf.constant(-1.0))
        return {
            "number": number,
            "vector": tf.fill([3], sign * tf.cast(number, tf.float32)),
            "text": record,
            "looked_up": tf.gather(table, number % 5),
        }

    return prepare


def test_a_second_run_prepares_nothing(records, tmp_path):
    first, before = run(records, tmp_path / "disk", prepare_with(2))
    assert before["source_records"] == 150
    again, after = run(records, tmp_path / "disk", prepare_with(2))
    assert (after["source_records"], after["disk_records"]) == (0, 150)
    for one, other in zip(first, again, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)
    numbers = np.concatenate([batch["number"] for batch in first])
    assert numbers.tolist() == list(range(150))
    vectors = np.concatenate([batch["vector"] for batch in first])
    np.testing.assert_array_equal(vectors[:, 1], np.where(numbers > 50, numbers, -numbers))


def test_another_preparation_has_another_folder(records, tmp_path):
    run(records, tmp_path / "disk", prepare_with(2))
    changed, statistics = run(records, tmp_path / "disk", prepare_with(3))
    assert statistics["source_records"] == 150
    assert changed[0]["looked_up"].tolist()[:5] == [0, 3, 6, 9, 12]
    with_records = {path.parent for path in (tmp_path / "disk").glob("*/part-*")}
    assert len(with_records) == 2


def test_what_the_graph_does_not_say_needs_a_version(records, tmp_path):
    words = [str(number) for number in range(150)]

    def looked_up_in(values):
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(words, tf.constant(values, tf.int64)), -1
        )
        return lambda record: table.lookup(record)

    def in_python(record):
        return tf.ensure_shape(
            tf.numpy_function(lambda text: np.int64(text), [record], tf.int64), []
        )

    scale = tf.Variable(3)

    def scaled(record):
        return scale * tf.strings.to_number(record, tf.int32)

    def of_a_file(record):
        path = tf.strings.join([str(records.parent), "/", record])
        return tf.cond(tf.strings.length(record) > 0, lambda: tf.io.read_file(path), lambda: "")

    for prepare in (looked_up_in(range(150)), in_python, scaled, of_a_file):
        with pytest.raises(ValueError, match="Give the cache a `version`"):
            run(records, tmp_path / "disk", prepare)
    for values, version in ((range(150), "a"), (range(150, 300), "b"), (range(150), "a")):
        batches, _ = run(records, tmp_path / "disk", looked_up_in(values), version=version)
        assert np.concatenate(batches).tolist() == list(values)


def fails_for_some(record):
    number = tf.strings.to_number(record, tf.int64)
    with tf.control_dependencies([tf.debugging.assert_none_equal(number % 50, np.int64(7))]):
        return tf.identity(number)


def test_what_cannot_be_prepared_is_named_or_left_out(records, tmp_path):
    with pytest.raises(tf.errors.OpError, match=r"numbers.tfrecord, record 7\)"):
        run(records, tmp_path / "disk", fails_for_some)
    for _ in range(2):
        batches, statistics = run(records, tmp_path / "disk", fails_for_some, on_error="skip")
        expected = [number for number in range(150) if number % 50 != 7]
        assert np.concatenate(batches).tolist() == expected
        assert statistics["skipped"] == 3
    assert statistics["disk_records"] == 147
