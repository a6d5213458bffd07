# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

from text.word_pieces import RESERVED, UNKNOWN, WordPieces, frequent_words


def test_frequent_words_are_pieces_and_others_are_spelt():
    pieces = frequent_words(["The cat, the dog", "the cat"], 25)
    assert pieces[: len(RESERVED)] == RESERVED and len(pieces) == 25
    ids = WordPieces(pieces).encode(["The CAT", "god", "x"]).to_list()
    assert [[pieces[id] for id in row] for row in ids[:2]] == [["the", "cat"], ["g", "##o", "##d"]]
    assert ids[2] == [UNKNOWN]
