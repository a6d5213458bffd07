# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

import numpy as np
import pair_batches
import pytest
from text.sentence_pieces import BEGIN, END, PADDING, SentencePieces, learn
from text.translations import Translations


@pytest.fixture(scope="module")
def text():
    words = [" ".join(f"w{n % 7}" for n in range(length)) for length in range(1, 40)]
    pairs = [(source, source.upper()) for source in words]
    pieces = SentencePieces(learn([side for pair in pairs for side in pair], 40))
    return Translations(pairs, pairs[:10], pieces)


def test_labels_are_the_targets_one_piece_on_and_padding_weighs_nothing(text):
    batches = list(pair_batches.make_batches(text, text.held_out, lambda length: 4, endless=False))
    found = []
    for (sources, targets), labels, weights in batches:
        np.testing.assert_array_equal(weights, np.not_equal(labels, PADDING))
        np.testing.assert_array_equal(targets[:, 1:], labels[:, :-1])
        assert (targets.numpy()[:, 0] == BEGIN).all() and len(sources) <= 4
        assert (np.sum(labels == END, axis=1) == 1).all()
        targets = np.concatenate([targets, labels[:, -1:]], axis=1)
        sides = (text.pieces.decode(side) for side in (sources.numpy(), targets))
        found += zip(*sides, strict=True)
    assert sorted(found) == sorted(text.held_out)


def test_batches_by_number_of_pieces(text):
    batches = pair_batches.make_batches(text, text.training, lambda length: 300 // length, True)
    for (sources, targets), _, _ in batches.take(50):
        longest = max(sources.shape[1], targets.shape[1] + 1)
        assert len(sources) == 300 // next(n for n in pair_batches._LENGTHS if n >= longest)


def test_long_pairs_are_left_out(text):
    long = ("w1 " * pair_batches.LONGEST, "W1")
    batches = pair_batches.make_batches(text, [long, text.training[0]], lambda length: 4, False)
    assert sum(len(labels) for _, labels, _ in batches) == 1
