# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""The examples of examples/imagenet, on few images of the set that they make themselves."""

import importlib.util
import math
import os
import pathlib
import re
import subprocess
import sys

import keras
import lab_ranks
import numpy as np
import pytest
import ranks
import tensorflow as tf

import tfdear
from tfdear.benchmarks import lab as netlab

pytestmark = [pytest.mark.integration, pytest.mark.multi_process, pytest.mark.newest_only]

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMAGENET = ROOT / "examples" / "imagenet"
TRAIN = IMAGENET / "train.py"
LAB_JOB = ROOT / "tests" / "multi_process" / "jobs" / "script_job.py"
# Only ends a job that hangs: on a machine with nothing else to do each takes half a minute.
DEADLINE = 240.0
# Buckets that do not depend on measured times: norms of parts are rounded alike in every run.
VARIABLES = {"PYTHONPATH": str(ROOT), "TFDEAR_FUSION": "FixedSize(4000000)"}
# 61 images in batches of 16 are 4 steps, of which the last has 13 rows.
TRAINING, VALIDATION = 61, 23
PHASES = ("--phases", "1:32:8:0.05", "1:48:8")
EPOCH = re.compile(
    r"^epoch (\d+): (\d+) px, \S+ images/s, ([\d.]+) MB exchanged in a step, loss ([\d.]+), "
    r"validation: top-1 ([\d.]+)%, top-5 ([\d.]+)% of (\d+) images$",
    re.MULTILINE,
)


def train(count, *arguments, deadline=DEADLINE):
    """Runs the training on some ranks, and returns what each printed."""
    results = ranks.run_ranks(count, TRAIN, VARIABLES, deadline, arguments)
    assert [code for code, _ in results] == [0] * count, "\n".join(t[-4000:] for _, t in results)
    return [text for _, text in results]


def epochs_of(text):
    """Of each epoch: number, size, megabytes exchanged, loss, top-1, top-5, images validated."""
    return [tuple(map(float, row)) for row in EPOCH.findall(text)]


def load(name):
    """A module of the example; its folder is not on the path, since names there are not unique."""
    spec = importlib.util.spec_from_file_location(f"imagenet_{name}", IMAGENET / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


images_module, model_module, photographs = map(load, ("input", "model", "photographs"))
with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "input", images_module)  # As `pack` calls it.
    pack = load("pack")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The set that the example makes."""
    folder = tmp_path_factory.mktemp("images") / "made"
    photographs.make(folder, TRAINING, VALIDATION)
    return folder


def row(text, name):
    (value,) = re.findall(rf"^{name} +(.+)$", text, re.MULTILINE)
    return value


def run(script, *arguments):
    """Runs a script in a process, and returns what it printed."""
    return subprocess.run(
        [sys.executable, str(IMAGENET / script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        check=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    ).stdout


def numbers(line):
    return re.findall(r"[\w.+-]+", line)


def test_a_dry_run_has_what_was_worked_out_by_hand():
    """The preset "paper" with ImageNet's counts, on 128 ranks of 16 nodes."""
    lines = [
        numbers(line) for line in run("train.py", "--dry-run", "--preset", "paper").split("\n")
    ]
    # 1281167 / 32768 = 39.1, / 16384 = 78.2. Rates: 25.6 = 0.2 x 32768 / 256 times (1 - x)^2, where
    # x = (images seen - 5 x 1281167) / (23 x 1281167); the step before the last of an epoch of 40
    # has seen 39 batches of it. At epoch 13: x = 8/23, at 24: 19/23, at 27: 22/23, there 12.8.
    rate = {
        "13": 25.6 * (15 / 23) ** 2,
        "24": 25.6 * (4 / 23) ** 2,
        "27": 12.8 * (1 / 23) ** 2,
        "before 13": 25.6 * ((15 + (1281167 - 39 * 32768) / 1281167) / 23) ** 2,
        "before 24": 25.6 * ((4 + (1281167 - 39 * 32768) / 1281167) / 23) ** 2,
        "before 27": 25.6 * ((1 + (1281167 - 39 * 32768) / 1281167) / 23) ** 2,
        "before 28": 12.8 * ((1281167 - 78 * 16384) / 1281167 / 23) ** 2,
    }
    phases = {
        "0-12": ["96", "32768", "0.01", "40", "520", "0", "520", 0.0, rate["before 13"]],
        "13-23": [
            "128",
            "32768",
            "dense",
            "40",
            "440",
            "520",
            "960",
            rate["13"],
            rate["before 24"],
        ],
        "24-26": [
            "224",
            "32768",
            "dense",
            "40",
            "120",
            "960",
            "1080",
            rate["24"],
            rate["before 27"],
        ],
        "27-27": [
            "288",
            "16384",
            "dense",
            "79",
            "79",
            "1080",
            "1159",
            rate["27"],
            rate["before 28"],
        ],
    }
    for epochs, expected in phases.items():
        (found,) = [line[1:] for line in lines if line[:1] == [epochs]]
        assert found[:-2] == expected[:-2]
        assert [float(text) for text in found[-2:]] == pytest.approx(expected[-2:], rel=1e-4)
    assert "warm-up ends with step 200 at 25.6 1159 steps in all" in [" ".join(n) for n in lines]

    # Of 160 px 1281167 x 3 x 160^2 bytes / 16 = 6.150 GB; 10,000 images/s x 76,800 bytes x 8 x
    # 15/16 = 5.76 Gbit/s. Dense gradients: 2 x 15/16 x 4 bytes x 25,557,032 weights = 191.7 MB in a
    # step, of which there are 10,000 x 16 / 32768 in a second; sparse ones 4.14 bytes of 1 %.
    kept = {
        ("96", "160"): (6.150, 0.086, 5.76, 4.88, 0.08),
        ("128", "160"): (6.150, 0.154, 5.76, 4.88, 7.49),
        ("224", "288"): (19.925, 0.470, 18.66, 4.88, 7.49),
        ("288", "288"): (19.925, 0.778, 18.66, 9.77, 14.97),
    }
    for (size, square), expected in kept.items():
        (found,) = [line[2:] for line in lines if line[:2] == [size, square]]
        assert tuple(map(float, found)) == expected


def test_a_few_steps_count_every_image_once():
    counts = ("--made", str(TRAINING), str(VALIDATION))
    chief, other = train(2, *counts, *PHASES)
    epochs = epochs_of(chief)
    assert [epoch[:2] for epoch in epochs] == [(0, 32), (1, 48)]
    assert all(epoch[-1] == VALIDATION and 1 < epoch[3] < 10 for epoch in epochs)
    assert row(chief, "validated") == "23 images of 48 px"
    assert not EPOCH.findall(other), "Only rank 0 prints."


def batches_of(path, square, count, size=32):
    """The first batches of training and all of validation, in this process."""
    training, validation = (images_module.open_images(path, split) for split in ("train", "val"))
    cache = images_module.training_cache(training, square, memory="64MB")
    batches = images_module.training_batches(
        cache,
        batch=16,
        size=size,
        classes=training.classes,
        least_area=0.25,
        seed=1,
        threads=2,
    )
    held_out = images_module.validation_batches(
        images_module.validation_cache(validation, size, memory="64MB"),
        batch=16,
        classes=training.classes,
        threads=2,
    )
    return [*batches.repeat(2).take(count), *held_out]


def is_same(batches, others):
    return len(batches) == len(others) and all(
        np.array_equal(*columns)
        for pair in zip(batches, others, strict=True)
        for columns in zip(*pair, strict=True)
    )


@pytest.mark.long
def test_formats_give_the_same_batches(made, tmp_path):
    """Folders, TFRecords of them and folders of these: the same files, in the same order."""
    run("pack.py", made, tmp_path / "records", "--to", "tfrecords", "--shards", 3)
    run("pack.py", tmp_path / "records", tmp_path / "folders", "--to", "folders")
    contents = [
        sorted((path.parent.name, path.read_bytes()) for path in folder.rglob("*.[jJ]*"))
        for folder in (made, tmp_path / "folders")
    ]
    assert len(contents[0]) == TRAINING + VALIDATION and contents[0] == contents[1]
    for square in (160, None):
        # Two epochs of 4 batches.
        expected = batches_of(made, square, 8)
        assert [len(images) for images, _ in expected] == [16, 16, 16, 13] * 2 + [16, 7]
        assert not is_same(expected[:4], expected[4:8]), "Epochs have crops of their own."
        assert is_same(expected, batches_of(made, square, 8))
        assert is_same(expected, batches_of(tmp_path / "records", square, 8))


def test_formats_have_the_same_labels(tmp_path):
    """Labels of which some have no images, and whose numbers are sorted otherwise as text."""
    picture = tf.io.encode_png(np.zeros([2, 2, 3], np.uint8)).numpy()
    expected = [1, 2, 10, 11, 100]
    (tmp_path / "source").mkdir()
    for split in ("train", "val"):
        with tf.io.TFRecordWriter(str(tmp_path / "source" / f"{split}-0")) as writer:
            for label in expected if split == "train" else [11]:
                integers = tf.train.Int64List(value=[label])
                feature = {
                    "image/encoded": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[picture])
                    ),
                    "image/class/label": tf.train.Feature(int64_list=integers),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())
    paths = [tmp_path / name for name in ("source", "folders", "records[1]")]
    for path, other, to in zip(paths, paths[1:], ("folders", "tfrecords"), strict=False):
        other.mkdir()
        for split in ("train", "val"):
            pack.pack(images_module.open_images(path, split), other, split, to, 1, None)
    for path in paths:
        for split, labels in (("train", expected), ("val", [11])):
            images = images_module.open_images(path, split)
            cache = images_module.validation_cache(images, 2)
            batches = cache.batches(5, shuffle=False).as_numpy_iterator()
            assert [batch.tolist() for _, batch in batches] == [labels]
            assert images.classes == 1001
    (tmp_path / "records[1]" / "classes.txt").write_text("crane\n" * 100)
    few = images_module.open_images(tmp_path / "records[1]", "train")
    with pytest.raises(tf.errors.OpError, match="Labels must be from 0 to 99, .*100"):
        list(images_module.validation_cache(few, 2).batches(5))
    (tmp_path / "records[1]" / "classes.txt").write_text("crane\n" * 1001)
    images = images_module.open_images(tmp_path / "records[1]", "train")
    with pytest.raises(SystemExit, match="a name of its own.* Received: 'crane'"):
        pack.pack(images, tmp_path, "train", "folders", 1, None)


def test_a_set_may_lack_images_of_some_classes(tmp_path):
    photographs.make(tmp_path / "made", 20, 5)
    images = images_module.open_images(tmp_path / "made", "val")
    assert (len(images.source), images.classes) == (5, 10)


def test_crops_of_squares_are_those_of_files(tmp_path):
    """Where pictures are squares of the cached size, both ways to cut have to agree."""
    ramp = np.linspace(0, 255, 160)
    picture = np.stack(np.broadcast_arrays(ramp, ramp[:, None], 128), 2).astype(np.uint8)
    for split, count in (("train", 16), ("val", 1)):
        (tmp_path / split / "ramp").mkdir(parents=True)
        for number in range(count):
            file = tf.io.encode_jpeg(picture, quality=100).numpy()
            (tmp_path / split / "ramp" / f"{number}.jpeg").write_bytes(file)
    (squares, _), (held_out, _) = batches_of(tmp_path, 160, 1)
    files = batches_of(tmp_path, None, 1)[0][0]
    np.testing.assert_allclose(squares, files, atol=3)
    right = np.diff(squares[..., 0].numpy().mean(1)).mean(1) > 0
    assert 0 < right.sum() < len(right), "Some are mirrored, some not."
    assert (np.diff(squares[..., 1].numpy().mean(2)) > 0).all(), "None is upside down."
    # 7/8 of the middle: 10 pixels are cut off on each side, of which 5 become 1.6.
    edges = held_out.numpy()[0, [0, -1], :, 1].mean(1)
    assert edges == pytest.approx([ramp[10:15].mean(), ramp[145:150].mean()], abs=2)


def test_statistics_are_means_of_batches():
    images = np.random.default_rng(0).normal(5, 3, (40, 4, 4, 2)).astype("float32")
    strategy = tfdear.DearStrategy()
    with strategy.scope():
        inputs = keras.Input((4, 4, 2))
        outputs = keras.layers.Dense(2)(keras.layers.BatchNormalization()(inputs))
        model = keras.Model(inputs, outputs)
    before = model.get_weights()
    batches = tf.data.Dataset.from_tensor_slices((images, images)).batch(10)
    assert model_module.estimate_statistics(strategy, model, batches, 3) == 3
    gamma, beta, mean, variance, *dense = model.get_weights()
    parts = images[:30].reshape(3, -1, 2)
    np.testing.assert_allclose(mean, parts.mean(1).mean(0), rtol=1e-5)
    np.testing.assert_allclose(variance, parts.var(1).mean(0), rtol=1e-4)
    for kept, old in zip((gamma, beta, *dense), (*before[:2], *before[4:]), strict=True):
        np.testing.assert_array_equal(kept, old)
    assert model.layers[1].momentum == 0.99


def test_resnet_50_is_version_1_5():
    model = model_module.make_model(50, 1000)
    trainable = model.trainable_weights
    assert sum(math.prod(variable.shape) for variable in trainable) == 25_557_032
    assert len(trainable) == 161
    # Of each of the 16 blocks one gamma is 0, so that a block is its shortcut.
    gammas = [variable for variable in trainable if variable.name == "gamma"]
    assert sum(not variable.numpy().any() for variable in gammas) == 16
    strided = [v for v in model.layers if isinstance(v, keras.layers.Conv2D) and v.strides[0] == 2]
    # The 1x1 ones are shortcuts.
    assert sorted((layer.kernel_size[0], layer.filters) for layer in strided) == [
        *((1, 512), (1, 1024), (1, 2048)),
        *((3, 128), (3, 256), (3, 512)),
        (7, 64),
    ]


def test_packed_images_are_made_smaller(made, tmp_path):
    run("pack.py", made, tmp_path, "--to", "folders", "--size", 96)
    paths = sorted(tmp_path.rglob("*.JPEG"))
    assert len(paths) == TRAINING + VALIDATION
    for path in paths:
        assert min(tf.io.decode_jpeg(path.read_bytes()).shape[:2]) == 96


@pytest.mark.long
@pytest.mark.parametrize(
    "more",
    [(), ("--ema", "0.9"), ("--save-every", "3")],
    ids=["weights", "averages", "within_epochs"],
)
def test_an_interrupted_training_goes_on_to_the_same_weights(made, tmp_path, more):
    """Killed in the second phase, of which it has seen an epoch."""
    options = ("--data", str(made), "--phases", "1:32:8", "4:48:8", "1:64:8", *more)
    train(2, *options, "--save", str(tmp_path / "whole.keras"))
    arguments = (*options, "--backup", str(tmp_path / "backup"))
    with ranks.Ranks(2, TRAIN, VARIABLES, arguments) as job:
        job.wait_for_output(0, "epoch 2: ", DEADLINE)
        job.processes[1].kill_session()
        assert 0 not in job.wait(timeout=DEADLINE)
    again, _ = train(2, *arguments, "--save", str(tmp_path / "interrupted.keras"))
    # The epoch in which it was killed begins anew, unless its backup was written already.
    assert [int(number) for number, *_ in epochs_of(again)] in ([3, 4, 5], [4, 5])
    assert not (tmp_path / "backup").exists()
    whole, interrupted = (
        keras.models.load_model(tmp_path / f"{name}.keras", compile=False).get_weights()
        for name in ("whole", "interrupted")
    )
    for one, other in zip(whole, interrupted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root")
def test_gradients_are_sparse_and_then_dense(tmp_path):
    """Two nodes of two ranks, 1 Gbit/s: what is exchanged in a step, by the engine's events."""
    arguments = ("--made", "240", "60", "--phases", "2:32:16:0.05", "2:48:16")
    with netlab.temporary(2, rate="1gbit") as lab:
        job = [str(TRAIN), *arguments]
        lab_ranks.run(lab.with_ranks(2), LAB_JOB, job, tmp_path, {}, 2 * DEADLINE)
    epochs = epochs_of((tmp_path / "log.0").read_text())
    assert [epoch[:2] for epoch in epochs] == [(0, 32), (1, 32), (2, 48), (3, 48)]
    sparse, dense = [epoch[2] for epoch in epochs[:2]], [epoch[2] for epoch in epochs[2:]]
    # Half of 11.2 million weights, of 4 bytes; at most a quarter of them, of 5 bytes, in the first
    # steps of sparse ones.
    assert dense[0] == dense[1] == pytest.approx(22.4, rel=0.03)
    assert all(0 < exchanged < 0.4 * dense[0] for exchanged in sparse)
    assert all(epoch[-1] == 60 for epoch in epochs)


@pytest.mark.long
@pytest.mark.timeout(1300)
def test_the_whole_recipe_learns():
    """The one command, with all of its defaults."""
    chief, _ = train(2, deadline=1200.0)
    assert [epoch[1] for epoch in epochs_of(chief)] == [32] * 8 + [48] * 6 + [64] * 4
    assert row(chief, "validated") == "500 images of 64 px"
    assert float(row(chief, "top-1").rstrip("%")) >= 85
