# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import pytest
from text import folder


def test_what_is_missing_is_said_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDEAR_TEXT", str(tmp_path))
    with pytest.raises(SystemExit, match="make text.*--text fallback"):
        folder.prepared("gcide.words.txt")


def test_other_contents_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDEAR_TEXT", str(tmp_path))
    expected = folder.expected_checksums()
    assert len(expected) >= 6 and all(len(digest) == 64 for digest in expected.values())
    assert folder.different_files() == []
    (tmp_path / "gcide.words.txt").write_text("other words")
    assert folder.different_files() == ["gcide.words.txt"]
