# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
from tfdear.base.exchange_names import exchange_names


def test_two_folders_change_their_names(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert exchange_names(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "other").exists() and (tmp_path / "other" / "one").exists()


def test_what_is_missing_is_not_exchanged(tmp_path):
    (tmp_path / "one").mkdir()
    assert not exchange_names(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one").exists() and not (tmp_path / "other").exists()
