# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""A small set of images for a try: crops of the two photographs that scikit-learn ships.

Each class is a region of one of them. Crops differ in place, scale, shape and colour, and half of
them are mirrored; those for validation are drawn apart from those for training. The same numbers
give the same files everywhere.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile

import numpy as np
import tensorflow as tf

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
# Of a photograph: top, left, bottom and right, in pixels.
_REGIONS = {
    "bud": (1, (365, 275, 427, 480)),
    "dusk": (1, (10, 455, 370, 640)),
    "galleries": (0, (160, 65, 320, 350)),
    "heart": (1, (145, 225, 270, 390)),
    "lake": (0, (205, 345, 320, 560)),
    "leaf": (1, (60, 0, 330, 165)),
    "petals": (1, (265, 175, 358, 435)),
    "roofs": (0, (30, 85, 165, 335)),
    "sky": (0, (0, 340, 190, 640)),
    "trees": (0, (290, 330, 427, 640)),
}
_SHORTEST, _LONGEST = 150, 500


def folder_of(training: int, validation: int) -> pathlib.Path:
    """Returns the folder in which a set of so many images is kept: in `build/photographs`."""
    return _REPOSITORY / "build" / "photographs" / f"{training}-{validation}"


def make(folder: pathlib.Path, training: int, validation: int) -> None:
    """Makes `train/<class>/*.jpeg` and `val/<class>/*.jpeg` in a folder, if it is not there yet.

    Args:
        folder: it gets its name when everything is in it, so that it is never found half made.
        training: number of images; the classes have the same share of it, within one.
        validation: likewise.
    """
    if folder.exists():
        return
    from sklearn.datasets import load_sample_images

    photographs = load_sample_images().images
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = pathlib.Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unfinished-"))
    try:
        for seed, (split, count) in enumerate((("train", training), ("val", validation))):
            for name in _REGIONS:
                (unfinished / split / name).mkdir(parents=True)
            for number in range(count):
                name = list(_REGIONS)[number % len(_REGIONS)]
                random = np.random.default_rng((seed, number))
                path = unfinished / split / name / f"{number:06}.jpeg"
                path.write_bytes(_draw(photographs, name, random))
                os.utime(path, (0, 0))  # Ranks of other machines compare the times of theirs.
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            # Another process was faster: its files are the same.
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _draw(photographs: list[np.ndarray], name: str, random: np.random.Generator) -> bytes:
    """Returns a crop of a region, as the contents of a JPEG file."""
    photograph, (top, left, bottom, right) = _REGIONS[name]
    height, width = (
        round(side * random.uniform(0.4, 1.0)) for side in (bottom - top, right - left)
    )
    top += random.integers(bottom - top - height + 1)
    left += random.integers(right - left - width + 1)
    crop = photographs[photograph][top : top + height, left : left + width]
    if random.random() < 0.5:
        crop = crop[:, ::-1]
    # Its own shape, but for a stretch.
    longer = random.integers(_SHORTEST, _LONGEST + 1) / max(height, width)
    size = [
        int(np.clip(side * longer * random.uniform(0.8, 1.25), _SHORTEST, _LONGEST))
        for side in (height, width)
    ]
    pixels = tf.image.resize(crop, size).numpy()
    contrast, brightness = random.uniform(0.6, 1.4), random.uniform(-40, 40)
    channels = random.uniform(0.85, 1.15, 3)
    pixels = (pixels - pixels.mean()) * contrast + pixels.mean() + brightness
    pixels = np.clip(pixels * channels + random.normal(0, 6, pixels.shape), 0, 255)
    quality = int(random.integers(60, 96))
    return tf.io.encode_jpeg(pixels.astype(np.uint8), quality=quality).numpy()
