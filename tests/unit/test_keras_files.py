# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Several ranks with one folder of backups."""

import os

import keras
import pytest

from tfdear import keras_files


@pytest.fixture
def backup(tmp_path):
    """A folder with as many files as a few ranks leave there, and who removes it."""
    keras_files.install()
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
    keras_files.install()
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


def test_other_errors_are_errors(backup, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("the folder belongs to somebody else")

    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(PermissionError, match="somebody else"):
        backup[1].on_train_end()
