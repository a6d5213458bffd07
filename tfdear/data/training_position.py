# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Where in its epochs training was when its weights were saved, kept in the same file."""

import dataclasses
import json
import os
import weakref

import h5py
import keras

_ATTRIBUTE = "tfdear_training_position"


@dataclasses.dataclass(frozen=True)
class Batches:
    """Steps that are batches of a cache."""

    size: int
    order: str  # Of their examples, as of `ExampleReader`.


@dataclasses.dataclass(frozen=True)
class Position:
    """What saved weights have seen."""

    epoch: int
    steps: int  # Of this epoch.
    batches: Batches | None  # What steps are; None: nobody says.


# What the steps are of trainings with these callbacks.
batches: weakref.WeakKeyDictionary[keras.callbacks.BackupAndRestore, Batches] = (
    weakref.WeakKeyDictionary()
)


def write(path: str | os.PathLike, callback: keras.callbacks.BackupAndRestore) -> None:
    """Adds to a file of weights, which a callback saves now, where its training is."""
    epoch, batch = callback._current_epoch, callback._last_batch_seen
    steps = 0 if callback.save_freq == "epoch" else _steps_up_to(batch, callback)
    position = Position(epoch, steps, batches.get(callback))
    with h5py.File(path, "r+") as file:
        file.attrs[_ATTRIBUTE] = json.dumps(dataclasses.asdict(position))


def restored(callback: keras.callbacks.BackupAndRestore) -> Position | None:
    """Where the training was whose weights a callback has restored; None: nobody says."""
    if not os.path.exists(callback._weights_path):
        return None
    with h5py.File(callback._weights_path, "r") as file:
        text = file.attrs.get(_ATTRIBUTE)
    if text is not None:
        told = json.loads(text)
        if told["batches"] is not None:
            told["batches"] = Batches(**told["batches"])
        return Position(**told)
    if callback.save_freq == "epoch" or not os.path.exists(callback._training_metadata_path):
        return None
    with open(callback._training_metadata_path, encoding="utf-8") as file:
        told = json.load(file)
    return Position(told["epoch"], _steps_up_to(told["batch"], callback), None)


def _steps_up_to(batch: int, callback: keras.callbacks.BackupAndRestore) -> int:
    """The steps of an epoch up to the last batch, by whatever number of them Keras calls it."""
    at_once = callback.model.steps_per_execution
    return (batch // at_once + 1) * at_once
