# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
import numpy as np
from text import words


def test_words_numbers_and_marks():
    assert words.tokenize("Don't \\Ab\\, 12 e-mails!") == [
        "don't", "\\", "ab", "\\", ",", "12", "e", "-", "mails", "!",
    ]  # fmt: skip


def test_ids_go_by_frequency_and_rare_words_are_unknown():
    entries = [f"the entry {number} of the book" for number in range(200)]
    text = words.make(entries)
    assert text.words[:5] == [words.UNKNOWN, "the", words.END, "book", "entry"]
    assert len(text.training) + len(text.held_out) == 7 * len(entries)
    # Entries that are held out have numbers that training lacks.
    ends = np.flatnonzero(text.held_out == 2)
    assert len(ends) > 0 and (text.held_out[ends - 4] == 0).all()
    few = text.limited_to(3)
    assert few.words == [words.UNKNOWN, "the", words.END]
    assert set(few.training) == {0, 1, 2} and len(few.training) == len(text.training)


def test_what_is_saved_is_loaded(tmp_path, monkeypatch):
    text = words.make(["one two", "two three", "é"])
    words.save(text, tmp_path)
    monkeypatch.setenv("TFDEAR_TEXT", str(tmp_path))
    loaded = words.load("prepared")
    assert loaded.words == text.words
    np.testing.assert_array_equal(loaded.training, text.training)
    np.testing.assert_array_equal(loaded.held_out, text.held_out)


def test_the_fallback_needs_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDEAR_TEXT", str(tmp_path))
    text = words.load("fallback")
    assert len(text.training) > 50_000 and len(text.held_out) > 500
