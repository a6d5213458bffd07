# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a cache reads: files of records, folders of files, data sets."""

import numpy as np
import pytest
import tensorflow as tf

import tfdear
from tfdear.data.dataset_records import DatasetRecords

pytestmark = pytest.mark.timeout(60)


def batches_of(cache, batch_size=4):
    batches = list(cache.batches(batch_size, seed=1).as_numpy_iterator())
    return [tuple(map(np.ndarray.tolist, batch)) for batch in batches]


@pytest.fixture
def folder(tmp_path):
    """Three classes of text files."""
    for label, name in enumerate("abc"):
        (tmp_path / name).mkdir()
        for number in range(3 + label):
            (tmp_path / name / f"{number}.txt").write_text(f"{name}{number}")
        (tmp_path / name / "folder").mkdir()
    (tmp_path / "file").write_text("of no class")
    return tmp_path


def test_all_sources_give_the_same_batches(folder, tmp_path):
    source = tfdear.data.ImageFolder(folder)
    assert len(source) == 12
    assert source.classes == ["a", "b", "c"]
    paths = sorted(map(str, folder.glob("?/*.txt")))
    labels = [0] * 3 + [1] * 4 + [2] * 5
    path = str(tmp_path / "records")
    with tf.io.TFRecordWriter(path) as writer:
        for file, label in zip(paths, labels, strict=True):
            content = tf.io.read_file(file)
            writer.write(tf.io.serialize_tensor(tf.stack([content, str(label)])).numpy())

    def from_record(record):
        content, label = tf.unstack(tf.ensure_shape(tf.io.parse_tensor(record, tf.string), [2]))
        return content, tf.strings.to_number(label, tf.int64)

    elements = tf.data.Dataset.from_tensor_slices((paths, np.array(labels, np.int64)))
    expected = batches_of(tfdear.data.DataCache(source))
    assert sorted(sum((contents for contents, _ in expected), [])) == sorted(
        (folder / file).read_bytes() for file in paths
    )
    for other in (
        tfdear.data.DataCache(tfdear.data.TFRecordFiles(path), from_record),
        tfdear.data.DataCache(elements, lambda file, label: (tf.io.read_file(file), label)),
        tfdear.data.DataCache(
            elements.filter(lambda file, label: True),
            lambda file, label: (tf.io.read_file(file), label),
        ),
    ):
        assert batches_of(other) == expected


def test_classes_can_be_chosen(folder):
    source = tfdear.data.ImageFolder(str(folder), classes=["c", "a"])
    assert len(source) == 8
    (contents, labels), errors = source.read(np.array([0, 7]))
    assert contents.numpy().tolist() == [b"c0", b"a2"]
    assert labels.numpy().tolist() == [0, 1]
    assert errors.numpy().tolist() == [b"", b""]
    assert source.name(7).endswith("a/2.txt")


def test_a_file_that_is_gone_is_named(folder):
    cache = tfdear.data.DataCache(tfdear.data.ImageFolder(folder))
    file, aside = folder / "b" / "1.txt", folder / "aside"
    file.rename(aside)
    for dataset in (cache.batches(4), cache.batches(1).prefetch(3)):
        iterator = iter(dataset)
        with pytest.raises(tf.errors.OpError, match=r"example 4 \(.*b/1.txt\) cannot be read"):
            list(iterator)
        with pytest.raises(tf.errors.OpError, match=r"example 4 \(.*b/1.txt\) cannot be read"):
            next(iterator)
    # Who reads on when it is there again has lost nothing.
    aside.rename(file)
    rest = list(cache.batches(4).as_numpy_iterator())
    assert sum(len(labels) for _, labels in rest) == 12


def test_folders_without_files_are_refused(folder, tmp_path):
    with pytest.raises(ValueError, match="`directory` must be a folder"):
        tfdear.data.ImageFolder(folder / "file")
    with pytest.raises(ValueError, match="There is no folder .* for class 'd'"):
        tfdear.data.ImageFolder(folder, ["a", "d"])
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match="The folder of class 'empty', .* has no files"):
        tfdear.data.ImageFolder(folder)
    with pytest.raises(ValueError, match="has no folders"):
        tfdear.data.ImageFolder(folder / "a" / "folder")


def test_what_is_no_data_set_of_records_is_refused():
    with pytest.raises(ValueError, match="needs a finite data set"):
        tfdear.data.DataCache(tf.data.Dataset.range(3).repeat())
    ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]]))
    with pytest.raises(ValueError, match="must be dense tensors of known shapes"):
        tfdear.data.DataCache(ragged)


def test_fingerprints_differ_where_records_do(folder, tmp_path):
    def of(values):
        return DatasetRecords(tf.data.Dataset.from_tensor_slices(values)).fingerprint()

    assert of([1, 2]) == of([1, 2]) != of([2, 1])
    assert of(["a", "bc"]) == of(["a", "bc"]) != of(["ab", "c"])
    assert of(([1], [2])) != of([1, 2])
    before = tfdear.data.ImageFolder(folder).fingerprint()
    (folder / "a" / "9.txt").write_text("another")
    assert tfdear.data.ImageFolder(folder).fingerprint() != before


@pytest.mark.parametrize("values", [[], np.zeros([0, 3], np.float32)])
def test_an_empty_source_has_no_batches(values):
    cache = tfdear.data.DataCache(tf.data.Dataset.from_tensor_slices(values))
    assert len(cache) == 0
    assert list(cache.batches(3)) == []
