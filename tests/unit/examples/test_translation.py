# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0

"""The two translators."""

import dataclasses

import gnmt
import keras
import numpy as np
import pytest
import transformer
from text.sentence_pieces import PADDING

PIECES = 20
SMALL = {gnmt: {"width": 8}, transformer: {"width": 8, "inner": 16, "heads": 2}}


@pytest.fixture(scope="module", params=SMALL, ids=lambda example: example.__name__)
def model(request):
    keras.utils.set_random_seed(1)
    shapes = dataclasses.replace(request.param.SHAPES["default"], **SMALL[request.param])
    return request.param.make_model(shapes, PIECES)


@pytest.fixture
def batch():
    random = np.random.default_rng(1)
    return random.integers(4, PIECES, (2, 6)), random.integers(4, PIECES, (2, 5))


def test_no_piece_is_scored_by_those_after_it(model, batch):
    source, target = batch
    scores = model((source, target)).numpy()
    assert scores.shape == (2, 5, PIECES)
    other = target.copy()
    other[:, 3:] = 4
    changed = model((source, other)).numpy()
    np.testing.assert_allclose(changed[:, :3], scores[:, :3], atol=1e-5)
    assert np.abs(changed[:, 3:] - scores[:, 3:]).max() > 1e-3


def test_padding_of_the_source_changes_nothing(model, batch):
    source, target = batch
    scores = model((source, target)).numpy()
    longer = np.pad(source, ((0, 0), (0, 3)), constant_values=PADDING)
    np.testing.assert_allclose(model((longer, target)).numpy(), scores, atol=1e-5)
    source[1, 2] = PADDING + 5 if source[1, 2] != PADDING + 5 else PADDING + 6
    changed = model((source, target)).numpy()
    np.testing.assert_allclose(changed[0], scores[0], atol=1e-5)
    assert np.abs(changed[1] - scores[1]).max() > 1e-4
