# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

from text import translations


def test_what_is_saved_is_loaded(tmp_path, monkeypatch):
    pairs = [(f"sentence {n} of the help", f"Satz {n} der großen Hilfe") for n in range(300)]
    catalogs = [(f"message {n} of a program", f"Meldung {n} des Programms") for n in range(100)]
    names = translations.save(pairs, catalogs, tmp_path)
    monkeypatch.setenv("TFDEAR_TEXT", str(tmp_path))
    loaded = translations.load("prepared", translations.NUMBERS_OF_PIECES[0])
    assert all((tmp_path / name).is_file() for name in names)
    assert sorted(loaded.training + loaded.held_out) != sorted(pairs + catalogs)
    # Nothing is measured with what this machine alone has.
    assert loaded.held_out and set(loaded.held_out) < set(pairs)
    assert set(loaded.training) < set(pairs + catalogs)
    assert not set(loaded.training) & set(loaded.held_out)


def test_the_fallback_needs_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDEAR_TEXT", str(tmp_path))
    text = translations.load("fallback", 32_000)
    assert len(text.training) > 1000 and len(text.held_out) > 30
    assert text.pieces.number <= 2000
    source, target = text.held_out[0]
    assert source == source.lower() and source != target
