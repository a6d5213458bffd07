# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Images from folders, TFRecords or ArrayRecords, through a cache, to batches for training."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable

import tensorflow as tf

import tfdear

# ImageNet's records count labels from 1, so that 0 is no class.
_CLASSES_OF_RECORDS = 1001
# Beside the images: the names of their classes, a line for each, by label from 0.
CLASSES_FILE = "classes.txt"
# Shapes of random crops: width over height.
_NARROWEST, _WIDEST = 3 / 4, 4 / 3
# What is cut off around an image that is evaluated: 7/8 of its shorter side are left.
_EVALUATED = 7 / 8

_Parse = Callable[..., tuple[tf.Tensor, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class Images:
    """Images of a split, as a source of a `DataCache`.

    Args:
        source: its raw records.
        parse: from a raw record to an image's file and its label.
        classes: number of labels.
        names: of the labels, where they are known.
    """

    source: object
    parse: _Parse
    classes: int
    names: tuple[str, ...] = ()


def count(images: Images, directory: str | None = None) -> int:
    """Returns how many there are, which the ranks find out together; call it on all of them.

    Args:
        images: of a split.
        directory: on a local disk of every node, where it is kept where records are.
    """
    cache = tfdear.data.DataCache(images.source, memory=0, directory=directory)
    with contextlib.closing(cache):
        return len(cache)


def open_images(path: str | os.PathLike, split: str) -> Images:
    """Finds the images of a split.

    Args:
        path: a folder with `train/<class>/` and `val/<class>/`, or with TFRecord or ArrayRecord
            files whose names begin with `train` and `val`, the latter ending in `.array_record`;
            a file `classes.txt` in it says which label a class has.
        split: "train" or "val".

    Raises:
        ValueError: There are none.
    """
    path = os.fspath(path)
    names = _listed_classes(path)
    if tf.io.gfile.isdir(os.path.join(path, split)):
        # Else labels are those of the folders for training.
        names = names or _folders_in(os.path.join(path, "train"))
        folder = tfdear.data.ImageFolder(os.path.join(path, split), classes=names)
        return Images(folder, lambda file, label: (file, label), len(names), tuple(names))
    entries = tf.io.gfile.listdir(path) if tf.io.gfile.isdir(path) else []
    files = [os.path.join(path, name) for name in entries if name.startswith(split)]
    if not files:
        raise ValueError(
            f"{path!r} must have folders `train` and `val`, of folders for each class, or files "
            f"of records whose names begin with train and val. Received: nothing for {split!r}"
        )
    if all(file.endswith((".array_record", ".arrayrecord")) for file in files):
        source = tfdear.data.ArrayRecordFiles(files)
    else:
        source = tfdear.data.TFRecordFiles(files)
    classes = len(names) or _CLASSES_OF_RECORDS
    return Images(source, functools.partial(_parse, classes), classes, tuple(names))


def _listed_classes(path: str) -> list[str]:
    listed = os.path.join(path, CLASSES_FILE)
    if not tf.io.gfile.exists(listed):
        return []
    with tf.io.gfile.GFile(listed) as file:
        return file.read().splitlines()


def _folders_in(path: str) -> list[str]:
    names = sorted(name.rstrip("/") for name in tf.io.gfile.listdir(path))
    shown = [name for name in names if not name.startswith(".")]
    return [name for name in shown if tf.io.gfile.isdir(os.path.join(path, name))]


def _parse(classes: int, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    features = tf.io.parse_single_example(
        record,
        {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        },
    )
    label = features["image/class/label"]
    expected = f"Labels must be from 0 to {classes - 1}, as {CLASSES_FILE} has lines. Label:"
    # Else it would be that of no class.
    is_known = tf.debugging.Assert((label >= 0) & (label < classes), [expected, label])
    with tf.control_dependencies([is_known] if is_known is not None else []):
        return features["image/encoded"], tf.identity(label)


def training_cache(images: Images, square: int | None, **options) -> tfdear.data.DataCache:
    """Returns a cache of what random crops are cut from.

    Args:
        images: for training.
        square: pixels of a side of the largest square in the middle, which is kept as pixels; None:
            the whole files are kept.
        options: of `DataCache`.
    """

    def prepare(*record):
        file, label = images.parse(*record)
        label = tf.cast(label, tf.int32)
        return (file if square is None else _middle(file, 1.0, square)), label

    return tfdear.data.DataCache(images.source, prepare, **options)


def validation_cache(images: Images, size: int, **options) -> tfdear.data.DataCache:
    """Returns a cache of middles: the shorter side becomes 8/7 of the size, of which that is cut.

    Args:
        images: for validation.
        size: pixels of a side.
        options: of `DataCache`.
    """

    def prepare(*record):
        file, label = images.parse(*record)
        return _middle(file, _EVALUATED, size), tf.cast(label, tf.int32)

    return tfdear.data.DataCache(images.source, prepare, **options)


def training_batches(
    cache: tfdear.data.DataCache,
    *,
    batch: int,
    size: int,
    classes: int,
    least_area: float,
    seed: int,
    threads: int,
) -> tf.data.Dataset:
    """Returns batches of (images, labels) of this rank: random crops, half of them mirrored.

    What is drawn for an image depends on the seed, the epoch and its place in it alone.

    Args:
        cache: of files or squares.
        batch: images of all ranks.
        size: pixels of a side.
        classes: number of labels, which become vectors.
        least_area: of a crop, as a fraction of the picture.
        seed: of the order and of the crops.
        threads: batches that are made at a time.
    """
    is_square = cache.element_spec[0].dtype != tf.string

    def augment(pictures, labels, positions):
        drawn = _draw(positions, seed)
        crop = _crop_squares if is_square else _crop_files
        return crop(pictures, drawn, size, least_area), tf.one_hot(labels, classes)

    dataset = cache.batches(batch, seed=seed, positions=True)
    # A number, since the end of an epoch would wait for what tunes AUTOTUNE.
    return dataset.map(augment, num_parallel_calls=threads).prefetch(2)


def validation_batches(
    cache: tfdear.data.DataCache, *, batch: int, classes: int, threads: int
) -> tf.data.Dataset:
    """Returns batches of (images, labels) of this rank, each image once."""

    def convert(images, labels):
        return tf.cast(images, tf.float32), tf.one_hot(labels, classes)

    dataset = cache.batches(batch, shuffle=False)
    return dataset.map(convert, num_parallel_calls=threads).prefetch(2)


def _decode(file: tf.Tensor) -> tf.Tensor:
    # ImageNet has a PNG among its files.
    image = tf.io.decode_image(file, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [None, None, 3])


def _middle(file: tf.Tensor, fraction: float, size: int) -> tf.Tensor:
    """Returns the square in the middle with this fraction of the shorter side, resized: uint8."""
    image = _decode(file)
    height, width = tf.unstack(tf.shape(image)[:2])
    shorter = tf.cast(tf.minimum(height, width), tf.float32)
    side = tf.maximum(1, tf.cast(tf.round(fraction * shorter), tf.int32))
    image = tf.image.crop_to_bounding_box(
        image, (height - side) // 2, (width - side) // 2, side, side
    )
    return _resize(image, size)


def _resize(image: tf.Tensor, size: int) -> tf.Tensor:
    image = tf.image.resize(image, [size, size], antialias=True)
    return tf.saturate_cast(tf.round(image), tf.uint8)


def _draw(positions: tf.Tensor, seed: int) -> tf.Tensor:
    """Returns five numbers in [0, 1) for each row, which follow from the seed and its position."""
    return tf.map_fn(
        lambda position: tf.random.stateless_uniform([5], tf.stack([seed, position])),
        positions,
        fn_output_signature=tf.TensorSpec([5], tf.float32),
    )


def _box(drawn: tf.Tensor, height: tf.Tensor, width: tf.Tensor, least_area: float):
    """Returns top, left, height and width of random boxes, in the unit of the picture's sides.

    Areas are uniform and shapes log-uniform, but for what would reach over an edge.
    """
    area, shape, down, right, _ = tf.unstack(drawn, axis=-1)
    area = (least_area + (1 - least_area) * area) * height * width
    shape = _NARROWEST * (_WIDEST / _NARROWEST) ** shape
    box_height = tf.minimum(tf.sqrt(area / shape), height)
    box_width = tf.minimum(tf.sqrt(area * shape), width)
    return down * (height - box_height), right * (width - box_width), box_height, box_width


def _crop_squares(squares: tf.Tensor, drawn: tf.Tensor, size: int, least_area: float) -> tf.Tensor:
    # Bilinear interpolation looks at two pixels of a side. Where a whole square would have more of
    # them for each pixel of the image, means of several are taken, so that none is passed over.
    finer = max(1, -(-squares.shape[1] // (2 * size)))
    samples = finer * size
    side = float(squares.shape[1])
    top, left, height, width = (
        number[:, None] for number in _box(drawn, tf.constant(side), tf.constant(side), least_area)
    )
    # Each sample is in the middle of its part of the box; pixels are counted from their middles.
    parts = (tf.range(samples, dtype=tf.float32)[None] + 0.5) / samples
    is_mirrored = drawn[:, 4, None] < 0.5
    rows = top + height * parts - 0.5
    columns = left + width * tf.where(is_mirrored, 1 - parts, parts) - 0.5
    images = _interpolate(_interpolate(squares, rows, axis=1), columns, axis=2)
    if finer > 1:
        images = tf.nn.avg_pool2d(images, finer, finer, "VALID")
    return tf.ensure_shape(images, [None, size, size, 3])


def _interpolate(images: tf.Tensor, places: tf.Tensor, axis: int) -> tf.Tensor:
    """Returns what lies between pixels: at the places (images, number) along the axis."""
    last = images.shape[axis] - 1
    places = tf.clip_by_value(places, 0.0, float(last))
    before = tf.cast(places, tf.int32)
    share = tf.expand_dims(tf.expand_dims(places - tf.cast(before, tf.float32), 3 - axis), 3)
    near, far = (
        tf.cast(tf.gather(images, index, axis=axis, batch_dims=1), tf.float32)
        for index in (before, tf.minimum(before + 1, last))
    )
    return near + share * (far - near)


def _crop_files(files: tf.Tensor, drawn: tf.Tensor, size: int, least_area: float) -> tf.Tensor:
    def crop(row):
        file, numbers = row
        image = _decode(file)
        sides = tf.shape(image)[:2]
        top, left, height, width = _box(
            numbers, *tf.unstack(tf.cast(sides, tf.float32)), least_area
        )
        edges = tf.stack([top, left, top + height, left + width])
        top, left, bottom, right = tf.unstack(tf.cast(tf.round(edges), tf.int32))
        image = image[top : tf.maximum(bottom, top + 1), left : tf.maximum(right, left + 1)]
        image = tf.image.resize(image, [size, size], antialias=True)
        return tf.cond(numbers[4] < 0.5, lambda: image[:, ::-1], lambda: image)

    signature = tf.TensorSpec([size, size, 3], tf.float32)
    return tf.map_fn(crop, (files, drawn), fn_output_signature=signature)
