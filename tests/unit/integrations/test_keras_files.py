# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Several ranks with one folder of backups."""

import os
import pathlib
import types

import keras
import pytest

from tfdear._private import seams
from tfdear.integrations.keras import residuals as residual_files
from tfdear.integrations.keras import saving as keras_files


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Several ranks' ways of writing files, until the test ends."""
    for name, _ in keras_files.SEAMS.wrappers:
        monkeypatch.setattr(*name.owner(), name.get())  # Put back when the test ends.
    seams.install(keras_files.SEAMS)


@pytest.fixture
def backup(tmp_path):
    """A folder with as many files as a few ranks leave there, and who removes it."""
    folder = tmp_path / "backup"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.residual").touch()
    return folder, keras.callbacks.BackupAndRestore(folder)


def test_another_rank_is_faster_with_every_file(backup, monkeypatch):
    folder, callback = backup
    unlink = os.unlink

    def after_another_rank(*arguments, **keywords):
        unlink(*arguments, **keywords)
        unlink(*arguments, **keywords)

    monkeypatch.setattr(os, "unlink", after_another_rank)
    callback.on_train_end()
    assert not folder.exists()


def test_another_rank_still_writes(backup, monkeypatch):
    folder, callback = backup
    rmdir, late = os.rmdir, ["metadata.json", "weights.h5"]

    def after_another_rank(*arguments, **keywords):
        if late:
            (folder / late.pop()).touch()
        rmdir(*arguments, **keywords)

    monkeypatch.setattr(os, "rmdir", after_another_rank)
    callback.on_train_end()
    assert not folder.exists()


@pytest.mark.parametrize("name", ["BackupAndRestore", "ModelCheckpoint"])
def test_another_rank_makes_the_folder_first(tmp_path, monkeypatch, name):
    folder = tmp_path / "new" / "folder"
    callback = {
        "BackupAndRestore": lambda: keras.callbacks.BackupAndRestore(folder),
        "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint(
            folder / "best.keras", monitor="loss", save_best_only=True
        ),
    }[name]()
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback.set_model(model)
    makedirs = os.makedirs

    def after_another_rank(*arguments, **keywords):
        makedirs(*arguments, **keywords)
        makedirs(*arguments, **keywords)

    monkeypatch.setattr(os, "makedirs", after_another_rank)
    callback.on_epoch_begin(0)
    callback.on_epoch_end(0, {"loss": 1.0})
    assert list(folder.iterdir())


def test_a_folder_that_stays_away_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(keras_files, "_INTERRUPTED_SECONDS", 0.1)
    calls = []

    def read(self):
        calls.append(self)
        return (tmp_path / "missing").read_text()

    with pytest.raises(FileNotFoundError, match="missing"):
        keras_files._retry_on_removal(read, None)
    assert 1 < len(calls) < 200


def test_a_missing_folder_of_residuals_is_one_that_was_removed(tmp_path, monkeypatch):
    job = types.SimpleNamespace(
        rank=1,
        world_size=2,
        options=types.SimpleNamespace(timeout=1.0),
        engine=types.SimpleNamespace(synchronize=lambda _: None, save_compression=lambda _: b""),
    )
    monkeypatch.setattr(residual_files, "_compressing_job", lambda _: job)
    monkeypatch.setattr(residual_files, "_step", lambda _: 20)
    monkeypatch.setattr(residual_files, "_numbers_of", lambda _: [7])
    folder = tmp_path / "removed"
    calls = []

    def back_up(self):
        if calls:
            folder.mkdir()
        calls.append(self)
        residual_files.write(None, folder / "latest.weights.h5")

    keras_files._retry_on_removal(back_up, None)
    assert len(calls) == 2 and len(list(folder.iterdir())) == 1


def test_half_a_file_is_not_left_behind(tmp_path):
    extended = types.SimpleNamespace(is_distributed_dear=True)
    strategy = types.SimpleNamespace(extended=extended, rank=1)
    model = types.SimpleNamespace(distribute_strategy=strategy)

    def save(_, path):
        pathlib.Path(path).write_text("half of it")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        keras_files._save_and_rename(save, True, model, tmp_path / "model.keras")
    assert not list(tmp_path.iterdir())


def test_other_errors_are_errors(backup, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("the folder belongs to somebody else")

    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(PermissionError, match="somebody else"):
        backup[1].on_train_end()
