# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
from text.next_paragraphs import RowMaker
from text.word_pieces import (
    CLASS,
    MASK,
    PADDING,
    RESERVED,
    SEPARATOR,
    UNKNOWN,
    WordPieces,
    frequent_words,
)

LENGTH = 40


@pytest.fixture(scope="module")
def documents():
    """Every word tells which document it is from, and where it stands there."""
    return [
        [" ".join(f"d{n}p{p}w{w}" for w in range(2 + (3 * n + p) % 7)) for p in range(20)]
        for n in range(30)
    ]


@pytest.fixture(scope="module")
def pieces(documents):
    return frequent_words([p for document in documents for p in document], 10_000)


@pytest.fixture(scope="module")
def rows(documents, pieces):
    return RowMaker(documents, WordPieces(pieces), LENGTH).make(seed=3)


def whole(rows, number):
    """A row with the hidden pieces in their places."""
    row = rows.pieces[number].copy()
    count = np.count_nonzero(rows.guessed[number])
    row[rows.places[number][:count]] = rows.guessed[number][:count]
    return row


def test_each_row_is_two_parts_between_separators(rows):
    assert len(rows) > 50
    for number in range(len(rows)):
        row = whole(rows, number)
        used = row != PADDING
        assert row[0] == CLASS and not (row == UNKNOWN).any()
        first_end, second_end = np.flatnonzero(row == SEPARATOR)
        assert first_end > 1 and second_end > first_end + 1
        assert second_end == used.sum() - 1 and used[: second_end + 1].all()
        expected = np.zeros(LENGTH)
        expected[first_end + 1 : second_end + 1] = 1
        np.testing.assert_array_equal(rows.parts[number], expected)


def test_the_second_part_follows_where_it_is_said(rows, pieces):
    assert 0.3 < rows.follows.mean() < 0.7
    for number in range(len(rows)):
        row = whole(rows, number)
        first_end, _ = np.flatnonzero(row == SEPARATOR)
        before, after = pieces[row[first_end - 1]], pieces[row[first_end + 1]]
        same_document = before.split("p")[0] == after.split("p")[0]
        assert same_document == bool(rows.follows[number])
        if rows.follows[number] and first_end + 1 < LENGTH // 2:
            # Nothing was cut off from the first part: the next paragraph begins.
            assert after.endswith("w0")


def test_about_fifteen_percent_are_guessed_and_most_of_them_hidden(rows):
    guessed = rows.guessed != PADDING
    assert (rows.guessed[guessed] >= len(RESERVED)).all()
    used = (rows.pieces != PADDING).sum() - 3 * len(rows)
    assert 0.13 < guessed.sum() / used < 0.17
    shown = np.take_along_axis(rows.pieces, rows.places, axis=1)[guessed]
    assert 0.75 < (shown == MASK).mean() < 0.85
    assert 0.05 < (shown == rows.guessed[guessed]).mean() < 0.15
    # Elsewhere nothing is hidden.
    assert (rows.pieces == MASK).sum() == (shown == MASK).sum()


def test_a_seed_gives_the_same_rows(documents, pieces, rows):
    maker = RowMaker(documents, WordPieces(pieces), LENGTH)
    again, other = maker.make(seed=3), maker.make(seed=4)
    np.testing.assert_array_equal(again.pieces, rows.pieces)
    np.testing.assert_array_equal(again.guessed, rows.guessed)
    assert other.pieces.shape != rows.pieces.shape or (other.pieces != rows.pieces).any()
