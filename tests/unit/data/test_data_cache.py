# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A cache of examples in one process."""

import gc
import os
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdear

pytestmark = pytest.mark.timeout(120)


def write_records(path, numbers):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in numbers:
            writer.write(tf.io.serialize_tensor(np.int64(number)).numpy())
    return str(path)


def number_of(record):
    return tf.ensure_shape(tf.io.parse_tensor(record, tf.int64), [])


@pytest.fixture
def source(tmp_path):
    """Makes a source of numbers from 0, in two files."""

    def make(count):
        write_records(tmp_path / "a.tfrecord", range(count // 3))
        write_records(tmp_path / "b.tfrecord", range(count // 3, count))
        return tfdear.data.TFRecordFiles(str(tmp_path / "*.tfrecord"))

    return make


def epoch_of(dataset):
    return [batch.tolist() for batch in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("examples", [0, 1, 7, 1003])
@pytest.mark.parametrize("batch_size", [1, 8, 2000])
def test_every_example_once_in_every_epoch(source, examples, batch_size):
    cache = tfdear.data.DataCache(source(examples), number_of, memory="1MB")
    assert len(cache) == examples
    dataset = cache.batches(batch_size)
    assert dataset.cardinality() == -(-examples // batch_size)
    epochs = [sum(epoch_of(dataset), []) for _ in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(examples))
    assert examples < 7 or epochs[0] != epochs[1] != epochs[2]
    assert cache.statistics()["prepared"] == examples
    whole = epoch_of(cache.batches(batch_size, drop_remainder=True))
    assert all(len(batch) == batch_size for batch in whole)
    assert len(whole) == examples // batch_size
    in_order = epoch_of(cache.batches(batch_size, shuffle=False))
    assert sum(in_order, []) == list(range(examples))


def test_orders_follow_from_seed_and_epoch(source):
    cache = tfdear.data.DataCache(source(100), number_of, memory="1MB")
    first = [epoch_of(cache.batches(7, seed=1)) for _ in range(2)]
    assert first[0] == first[1]
    assert epoch_of(cache.batches(7, seed=2)) != first[0]
    # Repetitions are epochs, the size of batches does not matter, and epochs can be started with.
    dataset = cache.batches(7, seed=1)
    epochs = [epoch_of(dataset) for _ in range(3)]
    assert sum(epochs, []) == epoch_of(cache.batches(7, seed=1).repeat(3))
    assert sum(epochs[2], []) == sum(epoch_of(cache.batches(100, seed=1, start=(2, 0))), [])
    assert epochs[1][4:] == epoch_of(cache.batches(7, seed=1, start=(1, 4)))
    assert epoch_of(cache.batches(7, seed=1, start=(1, 15))) == []
    tf.random.set_seed(1)
    assert sum(epoch_of(cache.batches(100)), []) == sum(first[0], [])


def test_positions_are_places_in_all_epochs(source):
    cache = tfdear.data.DataCache(source(10), number_of, memory="1MB")
    batches = list(cache.batches(4, positions=True, start=(2, 1)).as_numpy_iterator())
    assert [positions.tolist() for _, positions in batches] == [[24, 25, 26, 27], [28, 29]]
    pairs = tfdear.data.DataCache(source(10), lambda record: (number_of(record), record))
    assert pairs.batches(4, positions=True).element_spec == (
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([None], tf.string),
        tf.TensorSpec([None], tf.int64),
    )


def test_the_order_is_fair(source):
    """Every example comes as often at every place, and behind every other one."""
    cache = tfdear.data.DataCache(source(1000), number_of, memory="1MB")
    dataset = cache.batches(1000, seed=11)
    orders = np.array([next(iter(dataset)).numpy() for _ in range(400)])

    def is_fair(orders):
        places = np.argsort(orders, axis=1)
        chances = [
            # Of an example's place, of the rank of four that gets it, and of its successor.
            stats.chisquare(np.bincount(places[:, :20].ravel() // 50, minlength=20)).pvalue,
            stats.chisquare(np.bincount(places[:, ::7].ravel() % 4, minlength=4)).pvalue,
            stats.chisquare(
                np.bincount((orders[:, 1:] - orders[:, :-1]).ravel() % 1000, minlength=1000)[1:]
            ).pvalue,
        ]
        correlations = [
            stats.spearmanr(one, other).statistic
            for one, other in zip(places[:50], places[1:51], strict=True)
        ]
        # Their standard deviation is 1 / sqrt(999).
        return all(0.001 < chance < 0.999 for chance in chances) and abs(
            np.mean(correlations)
        ) < 4 / np.sqrt(999 * 50)

    assert is_fair(orders)
    buffered = tf.data.Dataset.range(1000).shuffle(100, seed=1).batch(1000)
    assert not is_fair(np.array([next(iter(buffered)).numpy() for _ in range(400)]))


@pytest.mark.parametrize("memory", [0, 20000])
def test_what_does_not_fit_is_prepared_in_every_epoch(source, memory):
    def prepare(record):
        number = number_of(record)
        return number, tf.fill([100], number)

    cache = tfdear.data.DataCache(source(100), prepare, memory=memory)
    dataset = cache.batches(8)
    hits = 0
    for epoch in range(3):
        batches = list(dataset.as_numpy_iterator())
        assert sorted(np.concatenate([n for n, _ in batches]).tolist()) == list(range(100))
        for numbers, filled in batches:
            np.testing.assert_array_equal(filled, np.tile(numbers[:, None], 100))
        found = cache.statistics()
        if epoch > 0:
            assert found["hits"] - hits == found["held"]
        hits = found["hits"]
    assert found["full"]
    assert found["held"] == memory // 808


def test_a_filled_cache_keeps_nobody_waiting(source):
    cache = tfdear.data.DataCache(source(500), number_of, memory="1MB")
    cache.fill()
    assert cache.statistics()["held"] == cache.statistics()["owned"] == 500
    assert sorted(sum(epoch_of(cache.batches(7)), [])) == list(range(500))
    assert cache.statistics()["hits"] == cache.statistics()["prepared"] == 500
    cache.fill()
    small = tfdear.data.DataCache(source(500), number_of, memory=800)
    small.fill()
    assert small.statistics()["held"] == 100
    assert small.statistics()["full"]


def test_a_cache_that_cannot_be_filled_says_why(source):
    def prepare(record):
        number = number_of(record)
        with tf.control_dependencies([tf.debugging.assert_none_equal(number, np.int64(13))]):
            return tf.identity(number)

    cache = tfdear.data.DataCache(source(30), prepare, memory="1MB")
    with pytest.raises(tfdear.TfdearError, match=r"example 13 \(.*, record 3\) cannot be prep"):
        cache.fill()
    assert cache.statistics()["held"] == 29


def test_nested_examples_of_all_types(tmp_path):
    path = write_records(tmp_path / "numbers", range(9))

    def prepare(record):
        number = number_of(record)
        return {
            "text": tf.strings.as_string(number),
            "texts": tf.stack([record, tf.strings.as_string(number)]),
            "flag": number > 4,
            "half": tf.cast(tf.fill([3, 50], number), tf.float16),
            "large": (tf.fill([5000], tf.cast(number, tf.complex64)),),
            "nothing": tf.zeros([0, 2]),
        }

    source = tfdear.data.TFRecordFiles([path])
    cache = tfdear.data.DataCache(source, prepare, memory="1MB")
    plain = tf.data.TFRecordDataset(path).map(prepare).batch(4)
    dataset = cache.batches(4, shuffle=False)
    assert dataset.element_spec == plain.element_spec
    for epoch in range(2):
        got, expected = list(dataset.as_numpy_iterator()), list(plain.as_numpy_iterator())
        assert len(got) == len(expected) == 3, epoch
        for one, other in zip(got, expected, strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, one, other)


def test_fit_has_the_epochs_of_keras(source):
    seen = []

    class Model(keras.Model):
        def train_step(self, batch):
            tf.numpy_function(lambda numbers: seen.append(numbers.tolist()), [batch], [])
            return {"loss": tf.constant(0.0)}

    cache = tfdear.data.DataCache(source(20), number_of, memory="1MB")
    expected = [epoch_of(cache.batches(8, seed=3, start=(epoch, 0))) for epoch in range(8)]

    def epochs(**arguments):
        model = Model()
        model.compile(run_eagerly=True)
        seen.clear()
        model.fit(verbose=0, **arguments)
        return [seen[i : i + 3] for i in range(0, len(seen), 3)]

    dataset = cache.batches(8, seed=3)
    assert epochs(x=dataset, epochs=3) == expected[:3]
    # Further calls begin with epoch 0 again, as Keras says.
    assert epochs(x=dataset.prefetch(2), epochs=7, initial_epoch=5) == expected[5:7]
    repeated = cache.batches(8, seed=3).repeat().prefetch(2)
    assert epochs(x=repeated, epochs=6, initial_epoch=4, steps_per_epoch=3) == expected[4:6]
    losses = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: losses.append(epoch))
    assert epochs(x=dataset, epochs=1, callbacks=callback) == expected[:1]
    assert losses == [0]


def test_positions_of_iterators_are_saved(source, tmp_path):
    cache = tfdear.data.DataCache(source(50), number_of, memory="1MB")
    dataset = cache.batches(4, seed=5).repeat(3).map(lambda numbers: numbers + 1).prefetch(2)
    expected = epoch_of(dataset)
    iterator = iter(cache.batches(4, seed=5).repeat(3).map(lambda numbers: numbers + 1).prefetch(2))
    for batch in expected[:17]:
        assert next(iterator).numpy().tolist() == batch
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "checkpoint"))
    assert os.path.getsize(f"{path}.data-00000-of-00001") < 1024
    another = iter(cache.batches(4, seed=5).repeat(3).map(lambda numbers: numbers + 1).prefetch(2))
    tf.train.Checkpoint(iterator=another).restore(path)
    assert [batch.numpy().tolist() for batch in another] == expected[17:]


def test_an_iterator_that_is_given_up_leaves_the_others(source):
    hold = threading.Event()

    def wait(number):
        hold.wait(20)
        return number

    def prepare(record):
        return tf.ensure_shape(tf.numpy_function(wait, [number_of(record)], tf.int64), [])

    cache = tfdear.data.DataCache(source(50), prepare, memory=0, threads=2)
    given_up = [iter(cache.batches(4).prefetch(2))]
    reading = threading.Thread(target=lambda: next(given_up[0], None))
    reading.start()
    dataset = cache.batches(5)
    hold.set()
    reading.join()
    given_up.clear()
    gc.collect()
    assert sorted(sum(epoch_of(dataset), [])) == list(range(50))


def test_a_data_set_keeps_its_cache(source):
    dataset = tfdear.data.DataCache(source(50), number_of, memory="1MB").batches(8).prefetch(1)
    gc.collect()
    assert sorted(sum(epoch_of(dataset), [])) == list(range(50))
    threads = [thread for thread in threading.enumerate() if thread.name == "tfdear-prepare"]
    del dataset
    gc.collect()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_a_closed_cache_says_so(source):
    cache = tfdear.data.DataCache(source(50), number_of, memory=0)
    dataset = cache.batches(8)
    iterator = iter(dataset)
    next(iterator)
    cache.close()
    with pytest.raises(tf.errors.OpError, match="the cache was closed"):
        list(iterator)
    for use in (lambda: cache.batches(8), cache.statistics):
        with pytest.raises(ValueError, match="This DataCache was closed"):
            use()


def test_a_record_that_cannot_be_prepared_is_named(source):
    def prepare(record):
        number = number_of(record)
        with tf.control_dependencies([tf.debugging.assert_none_equal(number, np.int64(13))]):
            return tf.identity(number)

    dataset = tfdear.data.DataCache(source(30), prepare, memory="1MB").batches(8)
    for _ in range(2):
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"example 13 \(.*b.tfrecord, record 3\) cannot be prepared",
        ):
            epoch_of(dataset)


def test_a_record_that_cannot_be_read_is_named(source, tmp_path):
    source(30)
    path = tmp_path / "a.tfrecord"
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    records = tfdear.data.TFRecordFiles(str(tmp_path / "*.tfrecord"))
    dataset = tfdear.data.DataCache(records, number_of, memory="1MB").batches(8)
    with pytest.raises(tf.errors.OpError, match=r"example 9 \(.*a.tfrecord, record 9\) cannot be"):
        epoch_of(dataset)
    path.unlink()
    dataset = tfdear.data.DataCache(records, number_of, memory="1MB").batches(8)
    with pytest.raises(tf.errors.OpError, match=r"a.tfrecord, record \d\) cannot be read"):
        epoch_of(dataset)


def test_what_is_no_record_file_is_refused(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(ValueError, match="No file matches"):
        tfdear.data.TFRecordFiles(str(path))
    with pytest.raises(ValueError, match="no pattern"):
        tfdear.data.TFRecordFiles([])
    path.write_bytes(b"no records at all, but some text of many bytes")
    with pytest.raises(tf.errors.DataLossError, match="no record of a TFRecord file begins at"):
        len(tfdear.data.TFRecordFiles(path))
    with tf.io.TFRecordWriter(str(path), "GZIP") as writer:
        writer.write(b"record")
    with pytest.raises(tf.errors.DataLossError, match="compressed files have no random access"):
        len(tfdear.data.TFRecordFiles(path))
    whole = write_records(path, range(3))
    content = path.read_bytes()
    for end in range(len(content)):
        path.write_bytes(content[:end])
        if end % (len(content) // 3) == 0:
            assert len(tfdear.data.TFRecordFiles(whole)) == end // (len(content) // 3)
            continue
        with pytest.raises(tf.errors.DataLossError, match="no record of a TFRecord file begins"):
            len(tfdear.data.TFRecordFiles(whole))


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda record: tf.random.uniform([3]), "draws random numbers"),
        (lambda record: tf.ragged.constant([[1], [2, 3]]), "must return dense tensors"),
        (lambda record: tf.sparse.from_dense([[1]]), "must return dense tensors"),
        (lambda record: (), "must return tensors"),
        (lambda record: {"a": [record, record]}, "must return a tensor, or a tuple or dict"),
        (
            lambda record: tf.data.experimental.to_variant(tf.data.Dataset.range(3)),
            "must return dense tensors",
        ),
    ],
)
def test_what_is_no_preparation_is_refused(source, prepare, message):
    with pytest.raises(ValueError, match=message):
        tfdear.data.DataCache(source(3), prepare)


def test_a_preparation_that_changes_something_is_refused(source):
    calls = tf.Variable([0])
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, 0)
    for change in (
        lambda record: calls.assign_add([1]),
        lambda record: calls[0].assign(1),
        lambda record: calls.scatter_nd_add([[0]], [1]),
        lambda record: table.insert(record, 1),
    ):

        def prepare(record, change=change):
            change(record)
            return record

        with pytest.raises(ValueError, match="writes a variable or a table"):
            tfdear.data.DataCache(source(3), prepare)
    with pytest.raises(ValueError, match="depends on the time"):
        tfdear.data.DataCache(source(3), lambda record: tf.timestamp())


def test_a_preparation_may_look_something_up(source):
    def prepare(record):
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["0", "1", "2"], np.int64([5, 6, 7])), -1
        )
        return table.lookup(tf.strings.as_string(number_of(record)))

    cache = tfdear.data.DataCache(source(3), prepare, memory="1MB")
    assert epoch_of(cache.batches(3, shuffle=False)) == [[5, 6, 7]]


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_python_may_fail_for_the_first_record(source, on_error):
    def python(number):
        if number == 0:
            raise ValueError("broken")
        return number

    cache = tfdear.data.DataCache(
        source(3),
        lambda record: tf.ensure_shape(
            tf.numpy_function(python, [number_of(record)], tf.int64), []
        ),
        memory="1MB",
        on_error=on_error,
    )
    dataset = cache.batches(3, shuffle=False)
    if on_error == "skip":
        assert epoch_of(dataset) == [[1, 2]]
    else:
        with pytest.raises(tf.errors.OpError, match=r"example 0 \(.*, record 0\) cannot be prep"):
            epoch_of(dataset)


def test_python_in_a_preparation_must_be_repeatable(source):
    def draw(record):
        return tf.ensure_shape(tf.numpy_function(np.random.rand, [], tf.float64), [])

    with pytest.raises(ValueError, match="must give the same example each time.*gave two"):
        tfdear.data.DataCache(source(3), draw)

    def same(record):
        return tf.ensure_shape(tf.numpy_function(lambda: np.float64("nan"), [], tf.float64), [])

    assert len(list(tfdear.data.DataCache(source(3), same).batches(2))) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": -1}, "`memory` must be a number of bytes"),
        ({"memory": "much"}, "`memory` must be a number of bytes"),
        ({"read_ahead": -1}, "`read_ahead` must be a whole number from 0"),
        ({"threads": 0}, "`threads` must be a whole number from 1"),
        ({"placement": "nowhere"}, "`placement` must be one of"),
        ({"disk_holds": "nothing"}, "`disk_holds` must be one of"),
        ({"on_error": "ignore"}, "`on_error` must be one of"),
        ({"strategy": tf.distribute.get_strategy()}, "`strategy` must be a tfdear.DearStrategy"),
        ({"disk_holds": "prepared"}, "needs a `directory`"),
        ({"disk": "1GB"}, "needs a `directory`"),
        ({"max_rate": 0}, "`max_rate` must be a positive number"),
        ({"max_rate": "fast"}, "`max_rate` must be a positive number"),
        ({"max_rate": float("nan")}, "`max_rate` must be a positive number"),
        ({"version": 2}, "`version` must be text, such as .* Received: 2"),
        ({"source": ["a.tfrecord"]}, r"`source` must be .* Received: \['a.tfrecord'\]"),
        ({"source": "*.tfrecord"}, "`source` must be .* Received: '\\*.tfrecord'"),
    ],
)
def test_arguments_of_caches_are_checked(source, arguments, message):
    with pytest.raises(ValueError, match=message):
        tfdear.data.DataCache(**{"source": source(3), **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be a whole number from 1"),
        ({"batch_size": -3}, "`batch_size` must be a whole number from 1"),
        ({"batch_size": 1.5}, "`batch_size` must be a whole number from 1"),
        ({"batch_size": 1 << 64}, "`batch_size` must be a whole number from 1, of 64 bits"),
        ({"batch_size": 2, "start": (0, 3)}, "which has 2"),
        ({"batch_size": True}, "`batch_size` must be a whole number from 1"),
        ({"batch_size": 2, "start": (-1, 0)}, "`start` must be an epoch and a step"),
        ({"batch_size": 2, "start": 1}, "`start` must be an epoch and a step"),
        ({"batch_size": np.array([1, 2])}, "`batch_size` must be a whole number from 1"),
        ({"batch_size": 2, "seed": "a"}, "`seed` must be a whole number"),
        ({"batch_size": 2, "order": "none"}, "`order` must be one of"),
    ],
)
def test_arguments_of_batches_are_checked(source, arguments, message):
    cache = tfdear.data.DataCache(source(3), number_of)
    with pytest.raises(ValueError, match=message):
        cache.batches(**arguments)


def test_examples_of_unknown_shapes_are_no_batch(source):
    cache = tfdear.data.DataCache(source(3), lambda record: tf.strings.bytes_split(record))
    with pytest.raises(ValueError, match="Examples of unknown shapes cannot be batched"):
        cache.batches(2)


def test_examples_of_an_unknown_number_of_dimensions_are_refused():
    records = tf.data.Dataset.from_tensors(tf.io.encode_png(np.zeros([4, 5, 3], np.uint8)))
    cache = tfdear.data.DataCache(records, tf.io.decode_image)
    with pytest.raises(ValueError, match="Examples need a known number of dimensions"):
        cache.examples()
    with pytest.raises(ValueError, match="Examples of unknown shapes cannot be batched"):
        cache.batches(1)


def test_numbers_of_numpy_are_whole_numbers(source):
    cache = tfdear.data.DataCache(
        source(10), number_of, read_ahead=np.int32(1), threads=np.int64(1)
    )
    start = np.array([1, 2])
    given = cache.batches(np.int64(3), seed=np.uint8(5), start=start)
    assert epoch_of(given) == epoch_of(cache.batches(3, seed=5, start=(1, 2)))
