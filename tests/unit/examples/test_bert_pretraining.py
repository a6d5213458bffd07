# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

import dataclasses

import bert_pretraining
import keras
import numpy as np
from text.word_pieces import PADDING

PIECES, LENGTH = 20, 7


def test_what_is_trained_and_what_scores_depend_on():
    keras.utils.set_random_seed(1)
    shapes = dataclasses.replace(
        bert_pretraining.SHAPES["default"], length=LENGTH, width=8, inner=16, heads=2
    )
    model = bert_pretraining.make_model(shapes, PIECES)
    sizes = {variable.path: tuple(variable.shape) for variable in model.trainable_variables}
    # The rows of pieces are there once: they are also what guesses are compared with.
    assert [shape for shape in sizes.values() if PIECES in shape] == [(PIECES, 8), (PIECES,)]
    assert (LENGTH, 8) in sizes.values() and (2, 8) in sizes.values()

    pieces = np.random.default_rng(1).integers(PADDING + 1, PIECES, (2, LENGTH))
    pieces[:, -2:] = PADDING
    places = np.array([[1, 3, 0], [2, 4, 0]])
    inputs = {"pieces": pieces, "parts": np.zeros_like(pieces), "places": places}
    scores = model(inputs)
    assert scores["guesses"].shape == (2, 3, PIECES) and scores["follows"].shape == (2, 2)
    # Where a piece stands matters.
    reordered = model(inputs | {"pieces": pieces[:, [0, 2, 1, 3, 4, 5, 6]]})
    assert np.abs(reordered["follows"] - scores["follows"]).max() > 1e-5
    # What goes with padding does not.
    padded = model(inputs | {"parts": (pieces == PADDING).astype(pieces.dtype)})
    np.testing.assert_allclose(padded["guesses"], scores["guesses"], atol=1e-5)
