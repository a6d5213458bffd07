# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

from text import documents
from text.word_pieces import RESERVED


def test_what_is_saved_is_loaded_and_pieces_are_made_once(tmp_path, monkeypatch):
    manuals = [[f"document {n}", "more of it", f"the end of {n}"] for n in range(100)]
    made = []

    def learn(paragraphs, number):
        made.append(len(paragraphs))
        return [*RESERVED, "document"]

    monkeypatch.setattr(documents, "learn", learn)
    monkeypatch.setenv("TFDEAR_TEXT", str(tmp_path))
    names = documents.save([*manuals, ["one paragraph"]], tmp_path)
    assert all((tmp_path / name).is_file() for name in names)
    loaded = documents.load("prepared")
    assert sorted(loaded.training + loaded.held_out) == sorted(manuals)
    assert 0 < len(loaded.held_out) < 15
    assert made == [3 * len(loaded.training)]
    documents.save(manuals, tmp_path)
    assert len(made) == 1
    documents.save(manuals[:50], tmp_path)
    assert len(made) == 2


def test_the_fallback_needs_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDEAR_TEXT", str(tmp_path))
    text = documents.load("fallback")
    assert len(text.training) > 50 and len(text.held_out) > 1
