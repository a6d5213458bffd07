# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Raw records that are kept in a folder."""

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

import tfdear
from tfdear.data import disk_folder
from tfdear.data.disk_cache import DiskCache

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def records(tmp_path):
    """Sixty records of numbers as text, of 100 to 159 bytes."""
    path = tmp_path / "source" / "records"
    path.parent.mkdir()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(60):
            writer.write(f"{number}".ljust(100 + number).encode())
    return path


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "disk"


def run(records, directory, **arguments):
    """What an epoch has and the statistics after it; the cache is closed."""
    source = tfdear.data.TFRecordFiles(records)
    cache = tfdear.data.DataCache(source, tf.strings.to_number, directory=directory, **arguments)
    batches = [batch.tolist() for batch in cache.batches(7, seed=1).as_numpy_iterator()]
    assert sorted(sum(batches, [])) == list(range(60))
    statistics = cache.statistics()
    cache.close()
    return batches, statistics


def files_of(directory, pattern="part-*"):
    return sorted(directory.glob(f"*/{pattern}"))


def test_a_second_run_reads_nothing_from_the_source(records, directory):
    expected, first = run(records, directory)
    assert (first["source_records"], first["disk_records"]) == (60, 0)
    times = [os.stat(path).st_mtime_ns for path in files_of(directory, "*")]
    # Also with another preparation.
    source = tfdear.data.TFRecordFiles(records)
    cache = tfdear.data.DataCache(source, tf.strings.length, directory=directory)
    lengths = np.concatenate(list(cache.batches(7).as_numpy_iterator()))
    assert sorted(lengths.tolist()) == list(range(100, 160))
    assert cache.statistics()["source_records"] == 0
    cache.close()
    batches, second = run(records, directory)
    assert batches == expected
    assert (second["source_records"], second["disk_records"]) == (0, 60)
    assert [os.stat(path).st_mtime_ns for path in files_of(directory, "*")] == times
    # Anybody can read the files.
    (part,) = map(str, files_of(directory))
    features = {
        "number": tf.io.FixedLenFeature([], tf.int64),
        "tensor_0": tf.io.FixedLenFeature([], tf.string),
    }
    for record in tf.data.TFRecordDataset(part):
        parsed = tf.io.parse_single_example(record, features)
        assert int(parsed["tensor_0"].numpy()) == parsed["number"]
    assert oct(directory.stat().st_mode)[-3:] == "700"


def test_folders_of_files_and_other_types_are_kept(tmp_path, directory):
    for name in "ab":
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "images" / name / f"{number}.png").write_bytes(bytes([number, 0, 255]))
    values = np.arange(24, dtype=np.float64).reshape(4, 2, 3)
    for source, records in (
        (tfdear.data.ImageFolder(tmp_path / "images"), 6),
        (tf.data.Dataset.from_tensor_slices({"a": values, "b": ["x", "", "yy", "z"]}), 4),
    ):
        expected = None
        for run_number in range(2):
            cache = tfdear.data.DataCache(source, directory=directory)
            batches = list(cache.batches(4, shuffle=False).as_numpy_iterator())
            expected = expected or batches
            tf.nest.map_structure(np.testing.assert_array_equal, batches, expected)
            assert cache.statistics()["disk_records"] == records * run_number
            cache.close()


def test_tensors_of_all_kinds_come_back_from_disk(directory):
    numbers = np.arange(8).reshape(4, 2)
    kinds = ["bool", "bfloat16", "complex64", "half", "int8", "uint8", "uint16", "uint32", "uint64"]
    # Bytes that end in zeros, too.
    texts = np.array([[[b"a%d\0" % row], [b""]] for row in range(4)], object)
    tensors = [texts, texts[:, 0, 0], *(tf.cast(numbers, kind) for kind in kinds)]
    source = tf.data.Dataset.from_tensor_slices(tuple(tensors))
    for from_disk in (0, 4):
        cache = tfdear.data.DataCache(source, directory=directory)
        (batch,) = cache.batches(4, shuffle=False)
        for one, other in zip(batch, tensors, strict=True):
            np.testing.assert_array_equal(one, other)
        statistics = cache.statistics()
        assert (statistics["disk_records"], statistics["damaged"]) == (from_disk, 0)
        cache.close()


def test_what_changes_has_a_folder_of_its_own(records, directory):
    run(records, directory)
    run(records, directory, version="2")
    assert len(list(directory.iterdir())) == 2
    os.utime(records, ns=(1, 1))
    _, statistics = run(records, directory)
    assert statistics["disk_records"] == 0
    assert len(list(directory.iterdir())) == 3


def test_damage_is_healed(records, directory):
    expected, _ = run(records, directory)
    (part,) = files_of(directory)
    (index,) = files_of(directory, "index-*")
    whole, numbers = part.read_bytes(), index.read_bytes()
    random = np.random.default_rng(0)
    for _ in range(10):
        damaged = bytearray(whole)
        damaged[random.integers(len(whole))] ^= 1 << random.integers(8)
        part.write_bytes(damaged)
        batches, statistics = run(records, directory)
        assert batches == expected
        assert statistics["damaged"] == statistics["source_records"] == 1
        batches, statistics = run(records, directory)
        assert batches == expected
        assert statistics["source_records"] == 0
        for path in files_of(directory)[1:]:
            path.unlink()
        index.write_bytes(numbers)
        part.write_bytes(whole)


def test_files_that_are_cut_are_taken_up_as_far_as_they_are_whole(records, directory):
    expected, _ = run(records, directory)
    (part,) = files_of(directory)
    (index,) = files_of(directory, "index-*")
    whole, numbers = part.read_bytes(), index.read_bytes()
    ends = [0, *np.cumsum(tfdear.data.TFRecordFiles(part).record_lengths()).tolist()]
    for cut in (*range(ends[-2], ends[-1], 7), ends[30], ends[30] + 1, 5, 0):
        for with_index in (False, True):
            part.write_bytes(whole[:cut])
            index.unlink()
            if with_index:
                index.write_bytes(numbers)
            batches, statistics = run(records, directory)
            assert batches == expected
            left = sum(end <= cut for end in ends[1:])
            assert statistics["disk_records"] == left, (cut, with_index)
            assert statistics["source_records"] == 60 - left
            assert part.stat().st_size == ends[left]
            _, statistics = run(records, directory)
            assert statistics["source_records"] == 0
            for path in files_of(directory)[1:]:
                path.unlink()


@pytest.mark.parametrize("content", [b"", b"no index", b"\x93NUMPY\x01\x00"])
def test_an_index_of_something_else_is_no_index(records, directory, content):
    run(records, directory)
    (index,) = files_of(directory, "index-*")
    index.write_bytes(content)
    _, statistics = run(records, directory)
    assert statistics["disk_records"] == 60


def test_files_of_something_else_are_no_records(records, directory):
    folder = disk_folder.open_folder(directory, tfdear.data.TFRecordFiles(records), "")
    with tf.io.TFRecordWriter(str(folder / "part-000-0000.tfrecord")) as writer:
        writer.write(b"something else")
    (folder / "part-000-0001.tfrecord").write_bytes(b"no records at all, but text")
    _, statistics = run(records, directory)
    assert statistics["source_records"] == 60


def test_what_is_written_is_bounded(records, directory):
    _, first = run(records, directory, disk=3000)
    assert first["source_records"] == 60
    assert 2700 < sum(path.stat().st_size for path in files_of(directory)) <= 3000
    _, second = run(records, directory, disk=3000)
    assert 14 < second["disk_records"] < 20
    _, none = run(records, directory, disk=0, version="none")
    assert (none["source_records"], none["disk_records"]) == (60, 0)


def test_what_is_there_does_not_count_for_what_is_free(records, directory, monkeypatch):
    run(records, directory, disk=6000)
    monkeypatch.setattr(disk_folder, "free_bytes", lambda folder: 7500)
    _, second = run(records, directory)
    assert 0 < second["disk_records"] < 60
    _, third = run(records, directory)
    assert (third["source_records"], third["disk_records"]) == (0, 60)


@pytest.mark.parametrize("memory", [0, 400])
def test_what_memory_does_not_hold_is_read_from_the_source_once(records, directory, memory):
    source = tfdear.data.TFRecordFiles(records)
    cache = tfdear.data.DataCache(
        source, tf.strings.to_number, directory=directory, memory=memory, threads=1
    )
    dataset = cache.batches(7, seed=1)
    for _ in range(3):
        batches = [batch.tolist() for batch in dataset.as_numpy_iterator()]
        assert sorted(sum(batches, [])) == list(range(60))
    statistics = cache.statistics()
    assert (statistics["source_records"], statistics["damaged"]) == (60, 0)
    assert statistics["disk_records"] > 0
    cache.close()
    (part,) = map(str, files_of(directory))
    assert len(list(tf.data.TFRecordDataset(part))) == 60


def test_readers_wait_until_a_place_is_whole(records, directory):
    source = tfdear.data.TFRecordFiles(records)
    disk = DiskCache(source, disk_folder.open_folder(directory, source, ""), 0, 1 << 20)
    with futures.ThreadPoolExecutor() as threads:
        with disk._lock:
            disk._begins[2] = 0
            reading = threads.submit(disk.read, np.arange(4))
            with pytest.raises(futures.TimeoutError):
                reading.result(0.5)
            disk._begins[2] = -1
        (texts,), errors = reading.result(30)
    assert [int(text) for text in texts.numpy()] == [0, 1, 2, 3]
    assert not any(errors.numpy())


def test_another_job_writes_nothing(records, directory, caplog):
    source = tfdear.data.TFRecordFiles(records)
    folder = disk_folder.open_folder(directory, source, "")
    with disk_folder.lock(folder):
        assert disk_folder.lock(folder) is None
        _, statistics = run(records, directory)
        assert statistics["source_records"] == 60
        assert files_of(directory) == []
    assert "another job, or another cache of this one, writes into" in caplog.text
    run(records, directory)
    with disk_folder.lock(folder):
        _, statistics = run(records, directory)
        assert statistics["source_records"] == 0


_KILLED = """
    import os
    import sys

    import tensorflow as tf

    import tfdear
    from tfdear.data import disk_writer

    disk_writer._INDEX_EVERY = 2000
    cache = tfdear.data.DataCache(
        tfdear.data.TFRecordFiles(sys.argv[1]), tf.strings.to_number, directory=sys.argv[2]
    )
    batches = iter(cache.batches(7, seed=1))
    for _ in range(int(sys.argv[3])):
        next(batches)
    os.kill(os.getpid(), 9)
"""


def test_what_a_killed_job_wrote_is_taken_up(records, directory):
    script = records.with_name("killed.py")
    script.write_text(textwrap.dedent(_KILLED))
    done = subprocess.run(
        [sys.executable, script, records, directory, "8"], timeout=60, capture_output=True
    )
    assert done.returncode == -9, done.stderr
    _, statistics = run(records, directory)
    assert statistics["disk_records"] >= 20
    assert statistics["disk_records"] + statistics["source_records"] == 60


def test_a_full_disk_ends_the_writing_alone(records, tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "tmpfs", mount], check=True)
    try:
        # Records that did not get as far as the file are no damage.
        source = tfdear.data.TFRecordFiles(records)
        cache = tfdear.data.DataCache(
            source, tf.strings.to_number, directory=mount, disk="1MB", memory=0
        )
        for dataset in [cache.batches(7, seed=1)] * 2:
            assert sorted(np.concatenate(list(dataset.as_numpy_iterator()))) == list(range(60))
        statistics = cache.statistics()
        assert statistics["source_records"] > 60
        assert statistics["damaged"] == 0
        cache.close()
    finally:
        subprocess.run(["umount", "--lazy", mount], check=True)


def test_a_disk_that_takes_nothing_is_read_alone(records, tmp_path, caplog):
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", mount], check=True)
    try:
        with contextlib.suppress(OSError):  # In blocks as small as the file system has.
            with (mount / "other").open("wb", buffering=0) as file:
                while file.write(b"." * 4096):
                    pass
        _, full = run(records, mount)
        assert full["source_records"] == 60
        (mount / "other").unlink()
        run(records, mount)
        subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
        _, again = run(records, mount)
        assert (again["source_records"], again["disk_records"]) == (0, 60)
        _, other = run(records, mount, version="2")
        assert other["source_records"] == 60
    finally:
        subprocess.run(["umount", "--lazy", mount], check=True)
    warnings = [text for text in caplog.messages if "nothing is written into" in text]
    for text, reason in zip(warnings, ("No space", "Read-only", "Read-only"), strict=True):
        assert reason in text


def test_directories_of_others_are_refused(records, directory, tmp_path):
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    with pytest.raises(ValueError, match="others must not be able to write to it"):
        run(records, directory)
    directory.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(directory)
    with pytest.raises(ValueError, match="must be a folder, and no link"):
        run(records, link)
    with pytest.raises(ValueError, match="must be a local folder that can be written to"):
        run(records, records)
    for other in ("gs://bucket/cache", "", 3):
        with pytest.raises(ValueError, match=f"must be a folder on a local disk .*: {other!r}"):
            run(records, other)
    run(records, directory)
    (folder,) = directory.iterdir()
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path)
    with pytest.raises(ValueError, match="must be a folder, and no link"):
        run(records, directory)
