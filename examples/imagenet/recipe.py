# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""What is trained when: phases, presets, the learning rate, and what that asks of a cluster."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

# Bytes of a gradient's element; and, sent sparsely, of its index and value (docs/compression.md).
_DENSE_BYTES, _SPARSE_BYTES = 4, 4.14
# From so many nodes on, sparse gradients are reduced and not gathered.
_NODES_OF_A_REDUCE = 4


@dataclasses.dataclass(frozen=True)
class Phase:
    """Epochs that have one size of images.

    Args:
        epochs: number of them.
        size: height and width of an image, in pixels.
        batch: images of a rank in a step.
        density: of the gradients between nodes; None: dense.
    """

    epochs: int
    size: int
    batch: int
    density: float | None = None

    @classmethod
    def parse(cls, text: str) -> Phase:
        """Reads `epochs:size:batch per rank[:density]`."""
        try:
            epochs, size, batch, *rest = text.split(":")
            (density,) = rest or ("",)
            phase = cls(int(epochs), int(size), int(batch), float(density) if density else None)
        except ValueError as error:
            raise ValueError(
                "A phase must be epochs:size:batch per rank, and :density where gradients are "
                f"to be sparse, such as 13:96:256:0.01. Received: {text!r}"
            ) from error
        if min(phase.epochs, phase.size, phase.batch) < 1 or not 0 < (phase.density or 1) <= 1:
            raise ValueError(
                "Epochs, size and batch of a phase must be from 1, and a density above 0 and at "
                f"most 1. Received: {text!r}"
            )
        return phase

    @property
    def square(self) -> int:
        """Pixels of a side of the squares from which the images of this phase are cut."""
        return 160 if self.size <= 128 else 288


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A training.

    Args:
        phases: one after the other.
        depth: of the ResNet.
        rate: learning rate for batches of 256 images; others have it in proportion.
        warm_up: epochs in which the rate grows from 0.
        decay: how it falls to 0 after that: "cosine", or "polynomial", (1 - x)^2.
        weight_decay: of the kernels.
        adapts: whether the rate of a kernel is scaled by norms, as LARS does.
        least_area: of a random crop, as a fraction of the picture.
        ranks: and nodes, for which it is meant.
        nodes: see ranks.
        examples: images for training and validation.
    """

    phases: tuple[Phase, ...]
    depth: int
    rate: float
    warm_up: float
    decay: str
    weight_decay: float
    adapts: bool = True
    least_area: float = 0.08
    ranks: int = 1
    nodes: int = 1
    examples: tuple[int, int] = (1_281_167, 50_000)

    @property
    def epochs(self) -> int:
        """Of all phases."""
        return sum(phase.epochs for phase in self.phases)


def _phases(*texts: str) -> tuple[Phase, ...]:
    return tuple(map(Phase.parse, texts))


PRESETS = {
    "photographs": Recipe(
        _phases("8:32:32:0.05", "6:48:32", "4:64:32"),
        depth=18,
        rate=8.0,
        warm_up=3,
        decay="cosine",
        weight_decay=1e-4,
        least_area=0.25,
        ranks=2,
        examples=(2000, 500),
    ),
    "paper": Recipe(
        _phases("13:96:256:0.01", "11:128:256", "3:224:256", "1:288:128"),
        depth=50,
        rate=0.2,
        warm_up=5,
        decay="polynomial",
        weight_decay=1e-4,
        ranks=128,
        nodes=16,
    ),
    "goyal": Recipe(
        _phases("90:224:32"),
        depth=50,
        rate=0.1,
        warm_up=5,
        decay="cosine",
        weight_decay=1e-4,
        adapts=False,
        ranks=256,
        nodes=32,
    ),
}


@dataclasses.dataclass(frozen=True)
class Steps:
    """Steps of a phase, counted from the beginning of the training."""

    phase: Phase
    first_epoch: int
    first: int
    per_epoch: int
    batch: int  # Of all ranks.

    @property
    def end(self) -> int:
        """The step after the last one."""
        return self.first + self.per_epoch * self.phase.epochs

    @property
    def end_epoch(self) -> int:
        """The epoch after the last one."""
        return self.first_epoch + self.phase.epochs


def steps_of(phases: Sequence[Phase], examples: int, ranks: int) -> list[Steps]:
    """Returns the steps of phases, for so many images and ranks."""
    found: list[Steps] = []
    epoch = step = 0
    for phase in phases:
        batch = phase.batch * ranks
        found.append(Steps(phase, epoch, step, math.ceil(examples / batch), batch))
        epoch, step = found[-1].end_epoch, found[-1].end
    return found


class RateByExamples(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that depends on how many images were seen before the step, and on its batch.

    Args:
        recipe: has the phases and the numbers.
        examples: images for training.
        ranks: number of them.
    """

    def __init__(self, recipe: Recipe, examples: int, ranks: int):
        self._recipe, self._examples, self._ranks = recipe, examples, ranks
        self._steps = steps_of(recipe.phases, examples, ranks)

    def examples_before(self, step):
        """Returns how many images were seen before a step, and the batch of the step: tensors."""
        step = tf.cast(step, tf.int64)
        columns = [(s.first, s.first_epoch, s.per_epoch, s.batch) for s in self._steps]
        firsts = tf.constant([column[0] for column in columns], tf.int64)
        phase = tf.reduce_sum(tf.cast(step >= firsts, tf.int64)) - 1
        first, epoch, per_epoch, batch = tf.unstack(
            tf.gather(tf.constant(columns, tf.int64), phase)
        )
        epochs, steps = epoch + (step - first) // per_epoch, (step - first) % per_epoch
        return epochs * self._examples + steps * batch, batch

    def __call__(self, step):
        recipe = self._recipe
        seen, batch = (tf.cast(number, tf.float64) for number in self.examples_before(step))
        warm_up, total = (epochs * self._examples for epochs in (recipe.warm_up, recipe.epochs))
        grown = tf.minimum(seen / max(warm_up, 1), 1.0)
        done = tf.clip_by_value((seen - warm_up) / max(total - warm_up, 1), 0.0, 1.0)
        left = 0.5 * (1 + tf.cos(np.pi * done)) if recipe.decay == "cosine" else (1 - done) ** 2
        return tf.cast(recipe.rate * batch / 256 * grown * left, tf.float32)

    def get_config(self):
        recipe = dataclasses.asdict(self._recipe)
        return {"recipe": recipe, "examples": self._examples, "ranks": self._ranks}

    @classmethod
    def from_config(cls, config):
        """Makes the schedule again."""
        phases = tuple(Phase(**phase) for phase in config["recipe"]["phases"])
        recipe = Recipe(**{**config["recipe"], "phases": phases})
        return cls(**{**config, "recipe": recipe})


def describe(
    recipe: Recipe, weights: int, images_per_second: float, squares: bool, replicated: bool = False
) -> str:
    """Returns tables of the steps, of the learning rate, and of what nodes keep and send.

    Args:
        recipe: with the numbers of images, ranks and nodes.
        weights: trainable ones of the model.
        images_per_second: that a node trains on.
        squares: whether images are cached as squares; else they are kept as their files.
        replicated: whether every node keeps all of them; else each has its part.
    """
    training, validation = recipe.examples
    nodes, ranks = recipe.nodes, recipe.ranks
    rate = RateByExamples(recipe, training, ranks)
    all_steps = steps_of(recipe.phases, training, ranks)
    lines = [
        f"{training} images for training, {validation} for validation; {ranks} ranks on {nodes} "
        f"nodes; ResNet-{recipe.depth} of {weights} weights",
        "",
        f"{'epochs':>8} {'size':>5} {'batch':>7} {'density':>8} {'per epoch':>10} {'steps':>7} "
        f"{'first':>7} {'end':>7} {'first rate':>11} {'last rate':>11}",
    ]
    for steps in all_steps:
        phase = steps.phase
        lines.append(
            f"{f'{steps.first_epoch}-{steps.end_epoch - 1}':>8} {phase.size:>5} {steps.batch:>7} "
            f"{'dense' if phase.density is None else f'{phase.density:g}':>8} "
            f"{steps.per_epoch:>10} {steps.end - steps.first:>7} {steps.first:>7} {steps.end:>7} "
            f"{float(rate(steps.first)):>11.5g} {float(rate(steps.end - 1)):>11.5g}"
        )
    end = all_steps[-1].end
    warm = next(
        (s for s in range(end) if rate.examples_before(s)[0] >= recipe.warm_up * training), 0
    )
    lines += [f"warm-up ends with step {warm}, at {float(rate(warm)):.5g}; {end} steps in all", ""]

    share = 1 if replicated else 1 / nodes  # Of all images, that a node keeps.
    lines.append(
        f"A node keeps, and at {images_per_second:g} images/s takes from the others and sends:"
        if squares
        else "Files for training are kept, and their sizes decide what a node keeps and takes; "
        f"besides, it keeps, and at {images_per_second:g} images/s sends:"
    )
    lines.append(
        f"{'size':>5} {'square':>7} {'training GB':>12} {'validation GB':>14} {'data Gbit/s':>12} "
        f"{'steps/s':>8} {'gradients Gbit/s':>17}"
    )
    for steps in all_steps:
        phase = steps.phase
        per_second = images_per_second * nodes / steps.batch
        bits = 8 * per_second * _gradient_bytes(weights, nodes, phase.density)
        pixels = 3 * phase.square**2
        kept = [
            f"{pixels * training * share / 1e9:.3f}",
            f"{3 * phase.size**2 * validation * share / 1e9:.3f}",
            f"{8 * images_per_second * pixels * (1 - share) / 1e9:.2f}",
        ]
        if not squares:
            kept[0] = kept[2] = "-"
        lines.append(
            f"{phase.size:>5} {phase.square if squares else '-':>7} {kept[0]:>12} {kept[1]:>14} "
            f"{kept[2]:>12} {per_second:>8.2f} {bits / 1e9:>17.2f}"
        )
    return "\n".join(lines)


def _gradient_bytes(weights: int, nodes: int, density: float | None) -> float:
    """What a node sends to the others in a step, at least: each weight of its sum once."""
    if density is None:
        return 2 * (nodes - 1) / nodes * _DENSE_BYTES * weights
    shares = nodes - 1 if nodes < _NODES_OF_A_REDUCE else 2 * (nodes - 1) / nodes
    return shares * _SPARSE_BYTES * density * weights
