# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Records of ArrayRecord files."""

import glob
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from array_record.python import array_record_module

import tfdear
from tfdear.data import array_record_files

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


def test_few_files_are_open_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(array_record_files, "_MOST_OPEN", 3)
    for number in range(12):
        write(tmp_path / f"{number:02}.array_record", [b"%02d" % number] * 5)
    source = tfdear.data.ArrayRecordFiles(str(tmp_path / "*.array_record"))
    for numbers in np.random.default_rng(1).permutation(60).reshape(10, 6):
        (records,), _ = source.read(numbers)
        assert [int(record) for record in records.numpy()] == (numbers // 5).tolist()
        links = [os.path.realpath(link) for link in glob.glob("/proc/self/fd/*")]
        assert sum(link.endswith(".array_record") for link in links) <= 3


# Prints how often what was read of healthy files, and the error of others.
_WITHOUT_DESCRIPTORS = """
import os, resource, sys
import numpy as np
import tfdear

source = tfdear.data.ArrayRecordFiles(sys.argv[1])
assert len(source) == 2
source.read(np.array([0]))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
_, errors = source.read(np.array([1]))
for descriptor in held:
    os.close(descriptor)
print(errors.numpy()[0].decode())
"""


def test_a_file_that_cannot_be_opened_now_is_not_damaged(tmp_path):
    for number in range(2):
        write(tmp_path / f"{number}.array_record", [b"record"])
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_DESCRIPTORS, str(tmp_path / "*.array_record")],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert re.match("UNAVAILABLE: .*Too many open files", done.stdout.splitlines()[-1]), done


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
