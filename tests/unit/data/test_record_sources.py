# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What a cache reads: files of records, folders of files, data sets."""

import os

import numpy as np
import pytest
import tensorflow as tf

import tfdear
from tfdear.data.dataset_records import DatasetRecords
from tfdear.job import seeds

pytestmark = pytest.mark.timeout(60)


def batches_of(cache, batch_size=4):
    batches = list(cache.batches(batch_size, seed=1).as_numpy_iterator())
    return [tuple(map(np.ndarray.tolist, batch)) for batch in batches]


@pytest.fixture
def folder(tmp_path):
    """Three classes of files of text that pass for images."""
    for label, name in enumerate("abc"):
        (tmp_path / name).mkdir()
        for number in range(3 + label):
            (tmp_path / name / f"{number}.jpeg").write_text(f"{name}{number}")
        (tmp_path / name / "folder").mkdir()
    (tmp_path / "file").write_text("of no class")
    return tmp_path


def test_all_sources_give_the_same_batches(folder, tmp_path):
    source = tfdear.data.ImageFolder(folder)
    assert len(source) == 12
    assert source.classes == ["a", "b", "c"]
    paths = sorted(map(str, folder.glob("?/*.jpeg")))
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
    assert source.name(7).endswith("a/2.jpeg")


def test_a_file_that_is_gone_is_named(folder):
    cache = tfdear.data.DataCache(tfdear.data.ImageFolder(folder))
    file, aside = folder / "b" / "1.jpeg", folder / "aside"
    file.rename(aside)
    for dataset in (cache.batches(4), cache.batches(1).prefetch(3)):
        iterator = iter(dataset)
        with pytest.raises(tf.errors.OpError, match=r"example 4 \(.*b/1.jpeg\) cannot be read"):
            list(iterator)
        with pytest.raises(tf.errors.OpError, match=r"example 4 \(.*b/1.jpeg\) cannot be read"):
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
    with pytest.raises(ValueError, match="1 of 4 classes have no images: .* 'empty'"):
        tfdear.data.ImageFolder(folder)
    with pytest.raises(ValueError, match="has no folders"):
        tfdear.data.ImageFolder(folder / "a" / "folder")


def test_what_is_no_image_is_passed_over(folder, caplog):
    expected = [tfdear.data.ImageFolder(folder).name(number) for number in range(12)]
    assert not caplog.records
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / "1.jpeg").write_text("of no class")
    for name in (".DS_Store", ".hidden.jpeg", "Thumbs.db", "folder/.DS_Store"):
        (folder / "b" / name).write_text("no image")
    for name in ("9.JPEG", "9.Png"):
        (folder / "b" / name).write_text("an image")
    source = tfdear.data.ImageFolder(folder)
    assert source.classes == ["a", "b", "c"]
    names = [source.name(number) for number in range(len(source))]
    assert sorted(names) == sorted([*expected, f"{folder}/b/9.JPEG", f"{folder}/b/9.Png"])
    (warning,) = caplog.records
    assert "1 files of" in warning.getMessage()
    assert warning.getMessage().endswith(f"{folder}/b/Thumbs.db")


def test_files_that_cannot_be_examples_are_told_in_words(folder):
    (folder / "b" / "folder" / "1.jpeg").write_text("of what class")
    with pytest.raises(ValueError, match="directly in the folder of their class, but '.*b/folder'"):
        tfdear.data.ImageFolder(folder)
    (folder / "b" / "folder" / "1.jpeg").unlink()
    link = folder / "b" / "link.jpeg"
    link.symlink_to(folder / "nothing")
    with pytest.raises(ValueError, match="'.*b/link.jpeg' is listed, but there is no such file"):
        tfdear.data.ImageFolder(folder)
    link.unlink()
    with open(os.fsencode(folder / "b") + b"/\xff.jpeg", "w"):
        pass
    with pytest.raises(ValueError, match=r"must be UTF-8. Received in '.*b': b'.xff.jpeg'"):
        tfdear.data.ImageFolder(folder)


def test_classes_that_are_chosen_twice_are_refused(folder):
    with pytest.raises(ValueError, match="must name each class once. Received: .'b', 'a', 'b'"):
        tfdear.data.ImageFolder(folder, classes=["b", "a", "b"])


def test_chosen_classes_may_have_no_images(folder):
    (folder / "empty").mkdir()
    source = tfdear.data.ImageFolder(folder, ["empty", "c"])
    assert len(source) == 5
    (_, labels), _ = source.read(np.arange(5))
    assert labels.numpy().tolist() == [1] * 5
    with pytest.raises(ValueError, match="1 of 1 classes have no images"):
        tfdear.data.ImageFolder(folder, ["empty"])


def test_names_may_look_like_patterns(tmp_path):
    for name in ("a[1]/x*", "a[1]/xy", "a1/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with tf.io.TFRecordWriter(str(tmp_path / name)) as writer:
            writer.write(name)

    def names(pattern):
        source = tfdear.data.TFRecordFiles(str(tmp_path / pattern))
        return source.read(np.arange(len(source)))[0][0].numpy().tolist()

    assert names("a[1]/xy") == [b"a[1]/xy"]
    assert names("a[1]/x*") == [b"a[1]/x*"]
    assert names("a[1]/?") == [b"a1/x"]
    assert names("a[[]1]/x?") == [b"a[1]/x*", b"a[1]/xy"]
    with pytest.raises(ValueError, match=r"a\[1\]' is a folder. Name the files in it"):
        names("a[1]")
    with pytest.raises(ValueError, match="No file matches .*/a2.* written as by `glob.escape`"):
        names("a2")


def test_what_is_no_data_set_of_records_is_refused():
    with pytest.raises(ValueError, match="needs a finite data set"):
        tfdear.data.DataCache(tf.data.Dataset.range(3).repeat())
    ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3]]))
    with pytest.raises(ValueError, match="must be dense tensors of known shapes"):
        tfdear.data.DataCache(ragged)


def test_an_order_that_is_drawn_anew_in_every_run_is_told(folder, caplog, monkeypatch):
    def told(seed=None, **arguments):
        caplog.clear()
        tf.random.set_seed(seed)
        paths = tf.data.Dataset.list_files(f"{folder}/*/*.jpeg", **arguments)
        tfdear.data.DataCache(paths, tf.io.read_file, memory="1MB")
        return "another order in every run" in caplog.text

    try:
        assert told()
        assert not told(shuffle=False)
        assert not told(seed=1)
        monkeypatch.setattr(seeds, "drawn", 2)
        assert told(seed=2)
    finally:
        tf.random.set_seed(None)


def test_fingerprints_differ_where_records_do(folder, tmp_path):
    def of(values):
        return DatasetRecords(tf.data.Dataset.from_tensor_slices(values)).fingerprint()

    assert of([1, 2]) == of([1, 2]) != of([2, 1])
    assert of(["a", "bc"]) == of(["a", "bc"]) != of(["ab", "c"])
    assert of(([1], [2])) != of([1, 2])
    before = tfdear.data.ImageFolder(folder).fingerprint()
    (folder / "a" / "9.jpeg").write_text("another")
    assert tfdear.data.ImageFolder(folder).fingerprint() != before


@pytest.mark.parametrize("values", [[], np.zeros([0, 3], np.float32)])
def test_an_empty_source_has_no_batches(values):
    cache = tfdear.data.DataCache(tf.data.Dataset.from_tensor_slices(values))
    assert len(cache) == 0
    assert list(cache.batches(3)) == []
