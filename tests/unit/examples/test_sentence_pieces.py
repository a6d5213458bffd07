# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

import pytest
from text.sentence_pieces import BEGIN, END, PADDING, SentencePieces, learn

SENTENCES = ["The house is small.", "Das Haus ist klein.", "The dog sees the house."] * 5


@pytest.fixture(scope="module")
def pieces():
    return SentencePieces(learn(SENTENCES, 60))


def test_sentences_come_back(pieces):
    ids = pieces.encode(SENTENCES[:3])
    assert all(row[0] == BEGIN and row[-1] == END for row in ids.to_list())
    assert pieces.decode(ids.to_list()) == SENTENCES[:3]
    assert 30 < pieces.number <= 60


def test_what_comes_after_the_end_is_not_read(pieces):
    row = pieces.encode(SENTENCES[:1]).to_list()[0]
    assert pieces.decode([row + row, row + [PADDING, END]]) == SENTENCES[:1] * 2


def test_the_same_lines_give_the_same_pieces():
    assert learn(SENTENCES, 60) == learn(SENTENCES, 60)
