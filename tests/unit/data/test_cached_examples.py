# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Single examples of a cache, and those that are left out."""

import gc
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdear

pytestmark = pytest.mark.timeout(120)


def cache_of(count, prepare=None, **arguments):
    numbers = tf.data.Dataset.range(count)
    return tfdear.data.DataCache(numbers, prepare, memory="1MB", **arguments)


@pytest.mark.parametrize("count", [0, 1, 7, 500])
def test_every_example_once(count):
    cache = cache_of(count)
    dataset = cache.examples(seed=3)
    assert dataset.cardinality() == count
    epochs = [[int(number) for number in dataset] for _ in range(2)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(count))
    if count == 500:
        assert epochs[0] != epochs[1]
    # The order is that of batches.
    assert sum((batch.numpy().tolist() for batch in cache.batches(64, seed=3)), []) == epochs[0]
    assert [int(number) for number in cache.examples(shuffle=False)] == list(range(count))


def test_examples_of_all_shapes_and_types():
    def prepare(number):
        count = tf.cast(number, tf.int32)
        return {
            "image": tf.fill([64, 64, 3], tf.cast(number, tf.uint8)),
            "ragged": tf.fill([count, 3000], tf.cast(number, tf.float32)),
            "words": tf.fill([count % 3, 2], tf.strings.as_string(number)),
            "number": number,
            "nothing": tf.zeros([0, 5]),
        }

    cache = cache_of(10, prepare)
    for _ in range(2):
        for number, example in enumerate(cache.examples(shuffle=False)):
            assert example["image"].shape == [64, 64, 3]
            np.testing.assert_array_equal(example["image"], number)
            np.testing.assert_array_equal(example["ragged"], np.full([number, 3000], number))
            text = str(number).encode()
            np.testing.assert_array_equal(example["words"], np.full([number % 3, 2], text))
            assert example["number"] == number
            assert example["nothing"].shape == [0, 5]


def test_examples_outlive_their_cache_and_nobody_writes_into_them():
    kept = list(cache_of(20, lambda number: tf.fill([100, 100], number)).examples(shuffle=False))
    gc.collect()
    # What an op could write in place goes elsewhere.
    doubled = [example + example for example in kept]
    for number, (example, double) in enumerate(zip(kept, doubled, strict=True)):
        np.testing.assert_array_equal(example, number)
        np.testing.assert_array_equal(double, 2 * number)


def broken(number):
    """Fails for 13 and 40."""
    bad = tf.reduce_any(tf.equal(number, tf.constant([13, 40], tf.int64)))
    with tf.control_dependencies([tf.debugging.assert_equal(bad, False, "broken")]):
        return tf.cast(number, tf.float32)


@pytest.mark.parametrize("memory", ["1MB", 0, 300])
def test_examples_that_cannot_be_prepared_are_left_out(memory, capfd):
    cache = tfdear.data.DataCache(tf.data.Dataset.range(50), broken, memory=memory, on_error="skip")
    expected = [number for number in range(50) if number not in (13, 40)]
    for _ in range(2):
        batches = list(cache.batches(8, shuffle=False, positions=True).as_numpy_iterator())
        assert [len(numbers) for numbers, _ in batches] == [8, 7, 8, 8, 8, 7, 2]
        numbers, places = (np.concatenate(part).astype(int) for part in zip(*batches, strict=True))
        assert numbers.tolist() == expected
        assert (places % 50).tolist() == expected
    dataset = cache.examples(shuffle=False)
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    assert [int(number) for number in dataset] == expected
    assert cache.statistics()["skipped"] == 2
    told = capfd.readouterr().err
    assert told.count("example 13 (element 13 of the data set) is left out: ") == 1
    assert "broken" in told


def test_all_examples_may_be_left_out():
    cache = cache_of(5, lambda number: broken(number * 0 + 13), on_error="skip")
    assert [batch.shape for batch in cache.batches(2)] == [[0], [0], [0]]
    assert not list(cache.examples())
    cache.fill()


def test_what_is_damaged_is_left_out_and_what_is_gone_is_not(tmp_path):
    path = tmp_path / "numbers.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(20):
            writer.write(str(number).ljust(20).encode())
    content = bytearray(path.read_bytes())
    content[5 * 36 + 20] ^= 1
    path.write_bytes(content)
    source = tfdear.data.TFRecordFiles(path)
    cache = tfdear.data.DataCache(source, tf.strings.to_number, on_error="skip")
    numbers = np.concatenate(list(cache.batches(8, shuffle=False).as_numpy_iterator()))
    assert numbers.tolist() == [number for number in range(20) if number != 5]
    path.unlink()
    cache = tfdear.data.DataCache(source, tf.strings.to_number, on_error="skip")
    with pytest.raises(tf.errors.OpError, match="cannot be read"):
        list(cache.batches(8))


def test_training_leaves_them_out_of_sums():
    keras.utils.set_random_seed(1)

    def model_of():
        keras.utils.set_random_seed(2)
        model = keras.Sequential(
            [keras.Input([]), keras.layers.Reshape([1]), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.001), "mse")
        return model

    cache = cache_of(50, lambda number: (broken(number), broken(number)), on_error="skip")
    skipping, reference = model_of(), model_of()
    skipping.fit(cache.batches(50, shuffle=False), epochs=3, verbose=0)
    numbers = np.array([number for number in range(50) if number not in (13, 40)], np.float32)
    reference.fit(numbers, numbers, 48, epochs=3, shuffle=False, verbose=0)
    for found, wanted in zip(skipping.weights, reference.weights, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_progress_and_statistics():
    cache = cache_of(300, lambda number: tf.fill([100], number))
    before = cache.progress()
    assert (before["done"], before["examples"], before["seconds_left"]) == (0, 300, None)
    cache.fill()
    after = cache.progress()
    assert (after["done"], after["examples"], after["seconds_left"]) == (300, 300, 0)
    assert after["examples_per_second"] == pytest.approx(300 / after["seconds"])
    assert after["source_rate"] == pytest.approx(300 * 8 / after["seconds"])
    time.sleep(0.01)
    assert cache.progress() == after  # It is over.
    statistics = cache.statistics()
    assert (statistics["source_records"], statistics["source_bytes"]) == (300, 2400)
    assert statistics["disk_records"] == statistics["disk_bytes"] == 0


def test_an_order_within_nodes_of_one_process_is_that_of_all():
    cache = cache_of(50)
    one, other = (
        [batch.numpy().tolist() for batch in cache.batches(8, seed=1, order=order)]
        for order in ("global", "node")
    )
    assert one == other
