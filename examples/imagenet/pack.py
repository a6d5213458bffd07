# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Turns images into another format: folders of classes, TFRecords or ArrayRecords; also smaller.

    python examples/imagenet/pack.py SOURCE TARGET --to tfrecords --shards 64 --size 288

Beside the images lies a file with the names of the classes, by label: labels are the same in all
formats. Records have the features `image/encoded` and `image/class/label`. ArrayRecords need
`pip install "tfdear[array_record]"`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
from collections.abc import Callable, Iterator
from concurrent import futures

import input as images_module
import numpy as np
import tensorflow as tf
from input import CLASSES_FILE, Images

FORMATS = ("folders", "tfrecords", "arrayrecords")
# Records that are read, made smaller and written at a time.
_BLOCK = 256
_QUALITY = 95

_Write = Callable[[int, bytes, int], None]


def main() -> None:
    """Reads the command line, and turns both splits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="folders, or files of records")
    parser.add_argument("target", type=pathlib.Path, help="a folder that is new, or empty")
    parser.add_argument("--to", choices=FORMATS, required=True)
    parser.add_argument("--shards", type=int, default=1, help="files of records of a split")
    parser.add_argument("--size", type=int, help="pixels of the shorter side, where it is longer")
    args = parser.parse_args()
    if args.shards < 1 or (args.size is not None and args.size < 1):
        parser.error(f"shards and size are from 1. Received: {args.shards}, {args.size}")
    if args.target.exists() and any(args.target.iterdir()):
        parser.error(f"{args.target} is not empty.")
    args.target.mkdir(parents=True, exist_ok=True)
    for split in ("train", "val"):
        images = images_module.open_images(args.source, split)
        pack(images, args.target, split, args.to, args.shards, args.size)
        print(f"{split}: {len(images.source)} images")


def pack(
    images: Images, target: pathlib.Path, split: str, to: str, shards: int, size: int | None
) -> None:
    """Writes the images of a split, in the order of their numbers.

    Args:
        images: of the split.
        target: a folder.
        split: "train" or "val".
        to: one of FORMATS.
        shards: files of records, of equal numbers of images within one.
        size: pixels of the shorter side of what has longer ones; None: files stay as they are.
    """
    names = images.names or tuple(str(label) for label in range(images.classes))
    (target / CLASSES_FILE).write_text("".join(f"{name}\n" for name in names))
    if to == "folders":
        writer = _open_folders(target / split, names)
    else:
        writer = _open_records(target, split, to, len(images.source), shards)
    with writer as write, futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        for begin in range(0, len(images.source), _BLOCK):
            numbers = np.arange(begin, min(begin + _BLOCK, len(images.source)))
            records = _read(images, numbers)
            files = threads.map(lambda record: _smaller(record[0], size), records)
            for number, file, (_, label) in zip(numbers.tolist(), files, records, strict=True):
                write(number, file, label)


def _read(images: Images, numbers: np.ndarray) -> list[tuple[bytes, int]]:
    """Returns the file and the label of records."""
    raw, errors = images.source.read(numbers)
    for number, error in zip(numbers.tolist(), errors.numpy(), strict=True):
        if error:
            raise SystemExit(f"{images.source.name(number)} cannot be read: {error.decode()}")
    pairs = (images.parse(*(column[row] for column in raw)) for row in range(len(numbers)))
    return [(file.numpy(), int(label)) for file, label in pairs]


def _smaller(file: bytes, size: int | None) -> bytes:
    """Returns an image whose shorter side has at most this many pixels."""
    if size is None:
        return file
    image = tf.io.decode_image(file, channels=3, expand_animations=False)
    sides = np.array(image.shape[:2])
    if sides.min() <= size:
        return file
    sides = np.maximum(size, np.round(sides * (size / sides.min()))).astype(np.int32)
    image = tf.image.resize(image, sides, antialias=True)
    pixels = tf.saturate_cast(tf.round(image), tf.uint8)
    return tf.io.encode_jpeg(pixels, quality=_QUALITY).numpy()


@contextlib.contextmanager
def _open_folders(folder: pathlib.Path, names: tuple[str, ...]) -> Iterator[_Write]:
    bad = [name for name in names if not name or name.startswith(".") or "/" in name]
    if bad or len(set(names)) < len(names):
        twice = [name for name in names if names.count(name) > 1]
        raise SystemExit(
            "Classes cannot be folders unless each has a name of its own, without / and with no "
            f"dot in front. Received: {(bad + twice)[0]!r}. Change the names in {CLASSES_FILE}."
        )
    # Also those of classes without images: their labels are not given to others.
    for name in names:
        (folder / name).mkdir(parents=True)

    def write(number: int, file: bytes, label: int) -> None:
        (folder / names[label] / f"{number:08}.JPEG").write_bytes(file)

    yield write


@contextlib.contextmanager
def _open_records(
    target: pathlib.Path, split: str, to: str, count: int, shards: int
) -> Iterator[_Write]:
    suffix = ".array_record" if to == "arrayrecords" else ".tfrecord"
    with contextlib.ExitStack() as files:
        writers = [
            files.enter_context(_open_file(str(target / name)))
            for name in (f"{split}-{s:05}-of-{shards:05}{suffix}" for s in range(shards))
        ]

        def write(number: int, file: bytes, label: int) -> None:
            features = {
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[file])),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writers[number * shards // count].write(example.SerializeToString())

        yield write


def _open_file(path: str):
    """Returns a writer of records, which is closed at the end of a `with` statement."""
    if path.endswith(".tfrecord"):
        return tf.io.TFRecordWriter(path)
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise SystemExit(
            f"ArrayRecords need another package: pip install 'tfdear[array_record]' ({error})"
        ) from error
    # Every record can then be read by itself.
    return contextlib.closing(array_record_module.ArrayRecordWriter(path, "group_size:1"))


if __name__ == "__main__":
    main()
