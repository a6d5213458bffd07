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


def test_another_rank_makes_the_folder_first(tmp_path, monkeypatch):
    keras_files.install()
    callback = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    callback.set_model(keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)]))
    makedirs = os.makedirs

    def after_another_rank(*arguments, **keywords):
        makedirs(*arguments, **keywords)
        makedirs(*arguments, **keywords)

    monkeypatch.setattr(os, "makedirs", after_another_rank)
    callback.on_epoch_end(0)
    assert (tmp_path / "backup" / "latest.weights.h5").exists()


def test_other_errors_are_errors(backup, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("the folder belongs to somebody else")

    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(PermissionError, match="somebody else"):
        backup[1].on_train_end()
