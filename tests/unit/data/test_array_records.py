# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Records of ArrayRecord files."""

import numpy as np
import pytest
import tensorflow as tf
from array_record.python import array_record_module

import tfdear

pytestmark = [pytest.mark.timeout(120), pytest.mark.newest_only]


def write(path, contents):
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for content in contents:
        writer.write(content)
    writer.close()
    return path


@pytest.fixture
def contents():
    generator = np.random.default_rng(0)
    return [generator.bytes(int(length)) for length in generator.integers(0, 900, 1003)]


def test_batches_are_those_of_other_files(tmp_path, contents):
    write(tmp_path / "a.array_record", contents[:400])
    write(tmp_path / "b.array_record", [])
    write(tmp_path / "c.array_record", contents[400:])
    with tf.io.TFRecordWriter(str(tmp_path / "all.tfrecord")) as writer:
        for content in contents:
            writer.write(content)
    arrays = tfdear.data.ArrayRecordFiles(str(tmp_path / "*.array_record"))
    assert len(arrays) == 1003
    assert arrays.name(400) == f"{tmp_path}/c.array_record, record 0"
    batches = [
        [
            rows.tolist()
            for rows in tfdear.data.DataCache(source).batches(64, seed=1).as_numpy_iterator()
        ]
        for source in (arrays, tfdear.data.TFRecordFiles(tmp_path / "all.tfrecord"))
    ]
    assert batches[0] == batches[1]
    assert sorted(sum(batches[0], [])) == sorted(contents)


def test_records_are_kept_on_disk(tmp_path, contents):
    path = write(tmp_path / "a.array_record", contents)
    for from_source in (1003, 0):
        source = tfdear.data.ArrayRecordFiles(path)
        cache = tfdear.data.DataCache(source, memory=0, directory=tmp_path / "disk")
        read = sum((rows.tolist() for rows in cache.batches(64).as_numpy_iterator()), [])
        assert sorted(read) == sorted(contents)
        assert cache.statistics()["source_records"] == from_source
        cache.close()


def test_what_is_damaged_is_named_or_left_out(tmp_path, contents):
    path = write(tmp_path / "a.array_record", contents)
    damaged = bytearray(path.read_bytes())
    place = damaged.index(contents[700])
    damaged[place] ^= 1
    path.write_bytes(damaged)
    source = tfdear.data.ArrayRecordFiles(path)
    with pytest.raises(tf.errors.OpError, match=r"example 700 \(.*record 700\) cannot be read"):
        list(tfdear.data.DataCache(source).batches(64))
    cache = tfdear.data.DataCache(source, on_error="skip")
    left = sum((rows.tolist() for rows in cache.batches(64, shuffle=False).as_numpy_iterator()), [])
    assert left == contents[:700] + contents[701:]
    source = tfdear.data.ArrayRecordFiles(path)
    assert len(source) == 1003
    path.unlink()
    source._readers.clear()
    with pytest.raises(tf.errors.OpError, match="cannot be read: NOT_FOUND"):
        list(tfdear.data.DataCache(source, on_error="skip").batches(64))


@pytest.mark.parametrize("keep", [0, 5, 70000, -5])
def test_what_is_no_such_file_is_refused(tmp_path, contents, keep):
    path = write(tmp_path / "a.array_record", contents)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match="a.array_record is cut off, or no ArrayRecord file"):
        len(tfdear.data.ArrayRecordFiles(path))
    with pytest.raises(ValueError, match="No file matches"):
        tfdear.data.ArrayRecordFiles(tmp_path / "nothing*")
