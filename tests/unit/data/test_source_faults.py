# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Sources whose reads fail, whose files change, and what is read of them, as their disk sees it."""

import os
import time

import numpy as np
import pytest
import tensorflow as tf

import tfdear
from tfdear.benchmarks import observed_files

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.newest_only,
    pytest.mark.skipif(
        observed_files.missing() is not None, reason=observed_files.missing() or "it is there"
    ),
]
_FILES, _PER_FILE, _BYTES = 3, 20, 500
_NUMBERS = list(range(_FILES * _PER_FILE))


def write(folder):
    for file in range(_FILES):
        with tf.io.TFRecordWriter(str(folder / f"{file}.tfrecord")) as writer:
            for place in range(_PER_FILE):
                writer.write(str(file * _PER_FILE + place).ljust(_BYTES).encode())
    for label in range(2):
        (folder / f"class{label}").mkdir()
        for place in range(4):
            content = f"{4 * label + place}".ljust(_BYTES)
            (folder / f"class{label}" / f"{place}.jpeg").write_text(content)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "below"
    path.mkdir()
    write(path)
    return path


@pytest.fixture
def observed(folder):
    with observed_files.ObservedFiles(folder) as observed:
        yield observed


def records(observed):
    return tfdear.data.TFRecordFiles(str(observed.path / "*.tfrecord"))


def images(observed):
    return tfdear.data.ImageFolder(observed.path)


def cache_of(source, **arguments):
    if isinstance(source, tfdear.data.ImageFolder):
        return tfdear.data.DataCache(
            source, lambda content, label: tf.strings.to_number(content, tf.int32), **arguments
        )
    return tfdear.data.DataCache(
        source, lambda record: tf.strings.to_number(record, tf.int32), **arguments
    )


def epoch_of(cache):
    batches = list(cache.batches(7, seed=1).as_numpy_iterator())
    return sorted(np.concatenate(batches).tolist())


@pytest.mark.parametrize(
    ("source", "pattern", "numbers"),
    [(records, "*.tfrecord", _NUMBERS), (images, "class*/*", list(range(8)))],
)
def test_what_fails_once_is_read_again(observed, source, pattern, numbers):
    # Also while records are looked for.
    observed.fail(pattern, times=1)
    cache = cache_of(source(observed), memory=0)
    assert epoch_of(cache) == numbers
    observed.fail(pattern, times=2)
    assert epoch_of(cache) == numbers


def test_a_damaged_record_is_read_again(observed):
    cache = cache_of(records(observed), memory=0)
    observed.alter("1.tfrecord", 3 * (_BYTES + 16) + 100, times=1)
    assert epoch_of(cache) == _NUMBERS
    observed.alter("1.tfrecord", 3 * (_BYTES + 16) + 100)
    with pytest.raises(tf.errors.OpError, match=r"1.tfrecord, record 3\) .* checksum"):
        epoch_of(cache)
    observed.heal()
    assert epoch_of(cache) == _NUMBERS


def test_what_fails_for_ever_is_an_error_with_file_and_record(observed):
    cache, folder = cache_of(records(observed), memory=0), cache_of(images(observed), memory=0)
    observed.fail("2.tfrecord")
    with pytest.raises(tf.errors.OpError, match=r"2.tfrecord, record \d+\) .*Input/output error"):
        epoch_of(cache)
    observed.fail("class1/2.jpeg")
    with pytest.raises(tf.errors.OpError, match=r"class1/2.jpeg\) .*Input/output error"):
        epoch_of(folder)
    with pytest.raises(tf.errors.OpError, match="Input/output error"):
        len(records(observed))


def test_a_file_that_becomes_shorter_is_an_error(observed):
    cache, folder = cache_of(records(observed), memory=0), cache_of(images(observed), memory=0)
    size = _PER_FILE * (_BYTES + 16)
    observed.cut("1.tfrecord", size - 1)
    expected = rf"1.tfrecord was changed .* it has {size - 1} bytes .* had {size} bytes"
    with pytest.raises(tf.errors.OpError, match=expected):
        epoch_of(cache)
    observed.cut("class0/1.jpeg", 7)
    with pytest.raises(tf.errors.OpError, match=r"class0/1.jpeg was changed .* it has 7 bytes"):
        epoch_of(folder)
    with pytest.raises(tf.errors.DataLossError, match="cut off"):
        len(records(observed))


def test_a_file_that_changes_while_it_is_read_is_an_error(observed, folder):
    cache, images_cache = (
        cache_of(records(observed), memory=0),
        cache_of(images(observed), memory=0),
    )
    assert epoch_of(cache) == _NUMBERS
    # Whole records of the same lengths, of other numbers.
    (folder / "0.tfrecord").write_bytes((folder / "1.tfrecord").read_bytes())
    with pytest.raises(tf.errors.OpError, match="0.tfrecord was changed while the job was running"):
        for _ in range(4):  # The first batches of an epoch may have been read before.
            epoch_of(cache)
    (folder / "class0" / "0.jpeg").write_text("9".ljust(_BYTES))
    with pytest.raises(tf.errors.OpError, match="0.jpeg was changed while the job was running"):
        for _ in range(4):
            epoch_of(images_cache)


@pytest.mark.parametrize(
    ("source", "changed", "numbers"),
    [(records, "0.tfrecord", _NUMBERS), (images, "class1/3.jpeg", list(range(8)))],
)
def test_what_changes_between_runs_is_another_source(
    observed, folder, tmp_path, source, changed, numbers
):
    def run():
        cache = cache_of(source(observed), directory=tmp_path / "disk")
        assert epoch_of(cache) == numbers
        cache.close()
        return observed.counts().bytes

    first = run()
    content = sum(path.stat().st_size for path in folder.rglob("*.*"))
    assert 0 < first <= content
    # Neither records nor their index are read again.
    observed.reset()
    assert run() == 0
    # Of the same names, sizes and contents.
    os.utime(folder / changed, ns=(1, 1))
    assert run() > 0
    assert len(list((tmp_path / "disk").iterdir())) == 2


@pytest.mark.parametrize(
    "damage", [lambda whole: b"", lambda whole: whole[:-1], lambda whole: b"no index" + whole[8:]]
)
def test_a_damaged_index_is_made_again(observed, tmp_path, damage):
    directory = tmp_path / "disk"
    cache_of(records(observed), directory=directory).close()
    (index,) = directory.glob("*/records.npz")
    whole = index.read_bytes()
    index.write_bytes(damage(whole))
    cache = cache_of(records(observed), directory=directory)
    assert epoch_of(cache) == _NUMBERS
    cache.close()
    with np.load(index) as arrays:
        assert arrays["lengths"].tolist() == [_BYTES + 16] * len(_NUMBERS)


@pytest.mark.parametrize("lengths", [[], [1] * 60, [516] * 59, [-516] * 60])
def test_an_index_of_other_records_is_none(observed, tmp_path, lengths):
    directory = tmp_path / "disk"
    cache_of(records(observed), directory=directory).close()
    (index,) = directory.glob("*/records.npz")
    np.savez_compressed(index, lengths=np.array(lengths, np.int64))
    assert epoch_of(cache_of(records(observed), directory=directory)) == _NUMBERS


def test_fill_reads_several_mebibytes_at_a_time(tmp_path):
    folder = tmp_path / "large"
    folder.mkdir()
    for file in range(2):
        with tf.io.TFRecordWriter(str(folder / f"{file}.tfrecord")) as writer:
            for _ in range(240):
                writer.write(os.urandom(50_000))
    with observed_files.ObservedFiles(folder) as observed:
        cache = tfdear.data.DataCache(
            records(observed), lambda record: tf.strings.length(record), memory="1MB"
        )
        observed.reset()
        cache.fill()
        # The kernel tells of a closed file a little later.
        end = time.monotonic() + 10
        while sum((counts := observed.counts()).runs) < counts.bytes and time.monotonic() < end:
            time.sleep(0.01)
    assert counts.bytes == sum(path.stat().st_size for path in folder.iterdir())
    # But for what is left at the ends of files.
    short = [run for run in counts.runs if run < 4 << 20]
    assert len(short) <= 4
    assert sum(short) <= 8 << 20
    assert counts.opens == len(counts.runs)
