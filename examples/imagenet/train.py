# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Trains ResNet on images of growing size, read and decoded once, with gradients sparse at first.

    tfdear run -n 2 examples/imagenet/train.py                     # makes its own small set
    tfdear run -n 8 examples/imagenet/train.py --preset paper --data PATH
    python examples/imagenet/train.py --preset paper --dry-run     # what that would take

README.md beside this file says what the options are for. The small set needs scikit-learn:
`pip install "tfdear[examples]"`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import time

import input as images_module
import keras
import model as model_module
import numpy as np
import photographs
import recipe as recipe_module
from recipe import PRESETS, Phase, Recipe, Steps

import tfdear

_SEED = 1
_CLASSES_OF_IMAGENET = 1000


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--data", help="folders or files of records; without: crops of two photographs")
    add("--made", nargs=2, type=int, metavar=("TRAIN", "VAL"), help="images of the set to make")
    add(
        "--preset",
        choices=PRESETS,
        default="photographs",
        help="what the next ones are if left out",
    )
    add("--phases", nargs="+", help="epochs:size:batch per rank[:density] of each")
    add("--depth", type=int, choices=model_module.DEPTHS, help="of the ResNet")
    add("--rate", type=float, help="learning rate for batches of 256")
    add("--warm-up", type=float, help="epochs in which it grows from 0")
    add("--decay", choices=["cosine", "polynomial"], help="how it falls to 0")
    add("--weight-decay", type=float, help="of the kernels")
    add("--least-area", type=float, help="of a random crop, as a fraction of the picture")
    add("--label-smoothing", type=float, default=0.1, help="share of the other classes")
    add("--ema", type=float, nargs="?", const=0.99, help="momentum of an average of the weights")
    add("--calibration-batches", type=int, default=50, help="for statistics of averaged weights")
    add("--synchronized-bn", action="store_true", help="statistics of the rows of all ranks")
    add("--dtype", choices=["float32", "mixed_bfloat16"], default="float32", help="of computation")
    add("--cached", choices=["squares", "raw"], default="squares", help="pixels, or files")
    add("--memory", help="bytes of a node for images, such as 12GiB; half of what is available")
    add("--placement", choices=["sharded", "replicated"], default="sharded", help="of images")
    add("--directory", help="on a local disk of every node, where files are kept for other runs")
    add("--dense-below", type=int, help="bytes of gradients that are not worth being made sparse")
    add("--backup", type=pathlib.Path, help="a folder to go on from if this run is interrupted")
    add("--save-every", type=int, help="batches between two backups; an epoch")
    add("--save", help="a .keras file for the model, with averaged weights if there are any")
    add("--dry-run", action="store_true", help="print steps, rates and bytes, and end")
    add("--ranks", type=int, help="of a dry run")
    add("--nodes", type=int, help="of a dry run")
    add("--images-per-second", type=float, default=10_000, help="of a node, for a dry run")
    return parser.parse_args()


def recipe_of(args: argparse.Namespace) -> Recipe:
    """Returns the preset with what the command line says otherwise."""
    names = ("depth", "rate", "warm_up", "decay", "weight_decay", "least_area", "ranks", "nodes")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.phases:
        given["phases"] = tuple(map(Phase.parse, args.phases))
    if args.made:
        given["examples"] = tuple(args.made)
    return dataclasses.replace(PRESETS[args.preset], **given)


def dry_run(args: argparse.Namespace, recipe: Recipe) -> None:
    """Prints what a training would take, once."""
    if os.environ.get("TFDEAR_RANK", "0") != "0":
        return
    classes = 10 if args.preset == "photographs" else _CLASSES_OF_IMAGENET
    if args.data:
        splits = [images_module.open_images(args.data, split) for split in ("train", "val")]
        counts = tuple(len(split.source) for split in splits)
        recipe, classes = dataclasses.replace(recipe, examples=counts), splits[0].classes
    weights = model_module.make_model(recipe.depth, classes).trainable_weights
    print(
        recipe_module.describe(
            recipe,
            sum(int(np.prod(variable.shape)) for variable in weights),
            args.images_per_second,
            args.cached == "squares",
            args.placement == "replicated",
        )
    )


class ImageCount(keras.metrics.Metric):
    """How many images there were."""

    def __init__(self):
        super().__init__(name="images")
        self._count = self.add_weight(initializer="zeros", name="count")

    def update_state(self, labels, scores, sample_weight=None):
        self._count.assign_add(keras.ops.cast(keras.ops.shape(labels)[0], "float32"))

    def result(self):
        return self._count.value


class Backup(keras.callbacks.BackupAndRestore):
    """Restores when the first phase of this process begins, and is deleted after the last one.

    Args:
        folder: for the backup.
        save_freq: batches between two, or "epoch".
    """

    def __init__(self, folder: pathlib.Path, save_freq: str | int):
        super().__init__(str(folder), save_freq, delete_checkpoint=False)
        self._restored = False

    @staticmethod
    def epochs_done(folder: pathlib.Path | None) -> int:
        """Returns the epochs that lie behind the backup in a folder, if there is one."""
        file = folder and folder / "training_metadata.json"
        return json.loads(file.read_text())["epoch"] if file and file.exists() else 0

    def on_train_begin(self, logs=None):
        if not self._restored:
            self._restored = True
            super().on_train_begin(logs)

    def on_epoch_begin(self, epoch, logs=None):
        super().on_epoch_begin(epoch, logs)
        # Keras counts from 0, also where it went on later.
        self._current_epoch = epoch

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        # Keras would begin the next phase there, too.
        self.model._initial_epoch = None


class KeepWeights(keras.callbacks.Callback):
    """Gives the model its own weights again, which `fit` replaces by their averages at its end."""

    def on_epoch_end(self, epoch, logs=None):
        self._weights = self.model.get_weights() if epoch + 1 == self.params["epochs"] else None

    def on_train_end(self, logs=None):
        self.model.set_weights(self._weights)


class EpochReport(keras.callbacks.Callback):
    """Prints a line for each epoch."""

    def __init__(self, strategy: tfdear.DearStrategy, size: int, images: int):
        super().__init__()
        self._strategy, self._size, self._images = strategy, size, images

    def on_epoch_begin(self, epoch, logs=None):
        self._strategy.events()  # Forgets what came before.
        self._begin, self._seconds = time.perf_counter(), None

    def on_test_begin(self, logs=None):
        self._strategy.synchronize()
        self._seconds = time.perf_counter() - self._begin

    def on_epoch_end(self, epoch, logs=None):
        # Of what compression decides about; other sums between nodes are dense ones.
        exchanges = [e for e in self._strategy.events() if e.kind == "sparse_exchange"]
        steps = len({exchange.ticket for exchange in exchanges})
        exchanged = sum(exchange.detail for exchange in exchanges) / max(steps, 1)
        if self._strategy.is_chief:
            print(
                f"epoch {epoch}: {self._size} px, {self._images / self._seconds:.3g} images/s, "
                f"{exchanged / 1e6:.2f} MB exchanged in a step, loss {logs['loss']:.3f}, "
                f"validation: top-1 {logs['val_top_1']:.2%}, top-5 {logs['val_top_5']:.2%} of "
                f"{logs['val_images']:.0f} images",
                flush=True,
            )


class Training:
    """Trains phase by phase.

    Args:
        args: the command line.
        recipe: what to train.
        data: path of the images.
        strategy: of all ranks.
    """

    def __init__(self, args, recipe: Recipe, data: str, strategy: tfdear.DearStrategy):
        self._args, self._recipe, self._strategy = args, recipe, strategy
        self._training, self._validation = (
            images_module.open_images(data, split) for split in ("train", "val")
        )
        self.examples = (
            images_module.count(self._training, args.directory),
            images_module.count(self._validation),
        )
        self._threads = max(1, len(os.sched_getaffinity(0)) // strategy.local_size)
        ranks = strategy.world_size
        self._steps = recipe_module.steps_of(recipe.phases, self.examples[0], ranks)
        self._cache, self._cached = None, None
        with strategy.scope():
            self.model = model_module.make_model(
                recipe.depth, self._training.classes, args.synchronized_bn
            )
            small = ["bias", "gamma", "beta"]
            optimizer = tfdear.optimizers.LARS(
                recipe_module.RateByExamples(recipe, self.examples[0], ranks),
                weight_decay=recipe.weight_decay,
                exclude_from_weight_decay=small,
                exclude_from_layer_adaptation=small if recipe.adapts else [".*"],
                use_ema=args.ema is not None,
                ema_momentum=args.ema or 0.99,
            )
            self.model.compile(
                optimizer,
                keras.losses.CategoricalCrossentropy(
                    from_logits=True, label_smoothing=args.label_smoothing
                ),
                metrics=[
                    keras.metrics.CategoricalAccuracy(name="top_1"),
                    keras.metrics.TopKCategoricalAccuracy(5, name="top_5"),
                    ImageCount(),
                ],
            )

    def run(self) -> dict[str, float]:
        """Trains, and returns the metrics of all validation images."""
        args = self._args
        done = Backup.epochs_done(args.backup)
        left = [steps for steps in self._steps if steps.end_epoch > done] or self._steps[-1:]
        callbacks = []
        if args.backup:
            callbacks.append(Backup(args.backup, args.save_every or "epoch"))
        if any(phase.density for phase in self._recipe.phases):
            densities = {steps.first_epoch: steps.phase.density for steps in self._steps}
            callbacks.append(tfdear.callbacks.CompressionSchedule(densities))
        for steps in left:
            validation = self._open_validation(steps)
            is_last = steps is left[-1]
            if is_last and args.backup:
                callbacks[0].delete_checkpoint = True
            self._fit(steps, validation, callbacks, keeps_weights=args.ema and not is_last)
            if is_last:
                return self._evaluate(steps, validation)
            validation.close()
        raise AssertionError("There is a last phase.")

    def _fit(self, steps: Steps, validation, callbacks, keeps_weights) -> None:
        report = EpochReport(self._strategy, steps.phase.size, self.examples[0])
        # Traced anew, for this size: else the second trace would be for images of any size, which
        # is slower, and rounds otherwise than a training that goes on here.
        self.model.train_function = self.model.test_function = None
        self.model.fit(
            self._training_batches(steps),
            initial_epoch=steps.first_epoch,
            epochs=steps.end_epoch,
            validation_data=self._validation_batches(validation, steps),
            shuffle=False,  # The cache does it.
            callbacks=[*callbacks, report, *([KeepWeights()] if keeps_weights else [])],
            verbose=0,
        )

    def _evaluate(self, steps: Steps, validation) -> dict[str, float]:
        if self._args.ema:
            model_module.estimate_statistics(
                self._strategy,
                self.model,
                self._training_batches(steps),
                self._args.calibration_batches,
            )
        batches = self._validation_batches(validation, steps)
        return self.model.evaluate(batches, return_dict=True, verbose=0)

    def _training_batches(self, steps: Steps):
        square = steps.phase.square if self._args.cached == "squares" else None
        if self._cache is None or square != self._cached:
            if self._cache is not None:
                self._cache.close()
            self._cache = images_module.training_cache(
                self._training, square, **self._options(), directory=self._args.directory
            )
            self._cached = square
        return images_module.training_batches(
            self._cache,
            batch=steps.batch,
            size=steps.phase.size,
            classes=self._training.classes,
            least_area=self._recipe.least_area,
            seed=_SEED,
            threads=self._threads,
        )

    def _open_validation(self, steps: Steps):
        return images_module.validation_cache(self._validation, steps.phase.size, **self._options())

    def _validation_batches(self, cache, steps: Steps):
        return images_module.validation_batches(
            cache, batch=steps.batch, classes=self._training.classes, threads=self._threads
        )

    def _options(self) -> dict:
        return {"memory": self._args.memory, "placement": self._args.placement}


def main() -> None:
    """Makes the set if there is none, trains, and prints what was reached."""
    args = parse_arguments()
    recipe = recipe_of(args)
    if args.dry_run:
        dry_run(args, recipe)
        return

    begin = time.perf_counter()
    compression = None
    if densities := [phase.density for phase in recipe.phases if phase.density]:
        below = {} if args.dense_below is None else {"dense_below": args.dense_below}
        compression = tfdear.compression.MSTopK(density=densities[0], **below)
    strategy = tfdear.DearStrategy(compression=compression)
    keras.utils.set_random_seed(_SEED)
    keras.config.set_dtype_policy(args.dtype)
    data = args.data
    if data is None:
        folder = photographs.folder_of(*(args.made or PRESETS["photographs"].examples))
        if strategy.local_rank == 0:
            photographs.make(folder, *(args.made or PRESETS["photographs"].examples))
        strategy.barrier()
        data = str(folder)
    training = Training(args, recipe, data, strategy)
    metrics = training.run()
    if strategy.is_chief:
        if args.save:
            # Without the optimizer, so that it loads without this package.
            keras.Model(training.model.inputs, training.model.outputs).save(args.save)
        rows = {
            "images": f"{training.examples[0]} for training, {training.examples[1]} for validation",
            "ranks": f"{strategy.world_size} on {strategy.num_nodes} nodes",
            "validated": f"{metrics['images']:.0f} images of {recipe.phases[-1].size} px",
            "top-1": f"{metrics['top_1']:.2%}",
            "top-5": f"{metrics['top_5']:.2%}",
            "seconds": f"{time.perf_counter() - begin:.0f}",
        }
        print()
        for name, value in rows.items():
            print(f"{name:<12} {value}")


if __name__ == "__main__":
    main()
